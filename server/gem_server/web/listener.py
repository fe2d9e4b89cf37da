"""Opens the HTTP listener of the dashboard and of /metrics."""

import logging
from functools import partial

from gem_server.service.history_handler import HistoryHandler
from gem_server.service.scrapes import Scrapes
from gem_server.service.status import Status
from gem_server.settings import ServerSettings
from gem_server.web.dashboard import Dashboard
from gem_server.web.hosts import Hosts
from gem_server.web.metrics import Metrics
from gem_server.web.web_server import WebServer

logger = logging.getLogger(__name__)


async def open_web(
    settings: ServerSettings, status: Status, history: HistoryHandler, scrapes: Scrapes, *, has_factors: bool
) -> WebServer:
    """Open --dashboard, which must be set. Raises StartupError, with nothing open."""
    server = WebServer(Hosts(name.strip() for name in settings.dashboard_hosts.split(",") if name.strip()))
    detailed = partial(status.report_when_durable, with_histograms=True)
    dashboard = Dashboard(detailed, history.report, has_factors=has_factors)
    routes = [*dashboard.routes(), *Metrics(status.report_when_durable, scrapes).routes()]
    await server.open(settings.dashboard, routes, dashboard.close)
    about = {"event": "dashboard", "url": server.url}
    logger.info("dashboard at %s, metrics for Prometheus at %smetrics", server.url, server.url, extra=about)
    return server
