"""Opens the listeners that the settings ask for, with what is to be seen there."""

import logging

from gem_server.service.status import Status
from gem_server.settings import ServerSettings
from gem_server.web.hosts import Hosts
from gem_server.web.metrics import Metrics
from gem_server.web.web_server import WebServer

logger = logging.getLogger(__name__)


async def open_web(settings: ServerSettings, status: Status) -> WebServer:
    """Listen at --metrics, as far as that is given. Raises StartupError; nothing is left open then."""
    server = WebServer(Hosts(name.strip() for name in settings.dashboard_hosts.split(",") if name.strip()))
    metrics = Metrics(status.shown)
    try:
        if settings.metrics:
            url = await server.open("--metrics", settings.metrics, metrics.routes())
            logger.info("metrics for Prometheus at %smetrics", url)
    except BaseException:
        await server.close()
        raise
    return server
