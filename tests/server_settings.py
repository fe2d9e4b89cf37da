"""Settings of the servers that tests start: the names of a table's settings stand beside the others.

`server_settings(eta=0.1, chunk_bytes=4096, tls_cert=path)` keeps the calls of a test short, and JSON flat.
"""

from collections.abc import Mapping
from typing import Any

from gem_cli.setting_keys import nested
from gem_server.setting_tables import LimitSettings
from gem_server.settings import ServerSettings

_KEYS = {name: f"limits.{name}" for name in LimitSettings.model_fields} | {
    "tls_cert": "tls.cert",
    "tls_key": "tls.key",
    "tls_client_ca": "tls.client_ca",
    "tokens": "tls.tokens",
}


def keys(named: Mapping[str, Any]) -> dict[str, Any]:
    """The values by their keys, as gem_cli.setting_keys has them: `limits.chunk_bytes`."""
    return {_KEYS.get(name, name): value for name, value in named.items()}


def server_settings(**named: Any) -> ServerSettings:
    """Valid settings. Raises ValidationError."""
    return ServerSettings(**nested(keys(named)))
