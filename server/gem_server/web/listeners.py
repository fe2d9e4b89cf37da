"""Opens the configured HTTP listeners."""

import logging
from functools import partial

from gem_server.service.history_handler import HistoryHandler
from gem_server.service.status import Status
from gem_server.settings import ServerSettings
from gem_server.web.dashboard import Dashboard
from gem_server.web.hosts import Hosts
from gem_server.web.metrics import Metrics
from gem_server.web.web_server import WebServer

logger = logging.getLogger(__name__)


async def open_web(
    settings: ServerSettings, status: Status, history: HistoryHandler, *, has_factors: bool
) -> WebServer:
    """Open --dashboard and --metrics, if set. Raises StartupError, with nothing open."""
    server = WebServer(Hosts(name.strip() for name in settings.dashboard_hosts.split(",") if name.strip()))
    metrics = Metrics(status.report_when_durable)
    try:
        if settings.dashboard:
            detailed = partial(status.report_when_durable, with_histograms=True)
            dashboard = Dashboard(detailed, history.report, has_factors=has_factors)
            routes = [*dashboard.routes(), *metrics.routes()]
            url = await server.open("--dashboard", settings.dashboard, routes, dashboard.close)
            about = {"event": "dashboard", "url": url}
            logger.info("dashboard at %s, metrics for Prometheus at %smetrics", url, url, extra=about)
        if settings.metrics:
            url = await server.open("--metrics", settings.metrics, metrics.routes())
            about = {"event": "metrics", "url": f"{url}metrics"}
            logger.info("metrics for Prometheus at %smetrics", url, extra=about)
    except BaseException:
        await server.close()
        raise
    return server
