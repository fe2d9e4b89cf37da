"""Settings and results of several servers."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gem_server.settings import ServerSettings
from gem_worker.client.settings import ClientSettings

from gem_cli.errors import USAGE, CommandError

# Settings that differ between shards.
OF_SHARDS = frozenset({"shard", "primary", "primary_credentials", "shard_address"})


def primary_settings(asked: ServerSettings, client: ClientSettings, shards: int) -> dict[str, Any]:
    """Settings of a primary; none for one server. Raises CommandError."""
    if shards == 1:
        return {}
    if _is_protected(asked) and client.credentials is None:
        raise CommandError(
            "--shards with TLS or tokens needs GEMPS_CLIENT_CREDENTIALS, the operator's folder of gemps certs", USAGE
        )
    return {"shard": f"0/{shards}"}


def with_port(bind: str) -> str:
    """`bind`, with a free port instead of 0. Raises CommandError."""
    host, _, port = bind.rpartition(":")
    return bind if int(port) else f"{host}:{_free_port(host.strip('[]'))}"


def shard_socket(path: Path, index: int) -> Path:
    """A shard's socket; `path`: the primary's."""
    return path.with_name(f"{path.name}-{index}")


def group_settings(
    primary: ServerSettings, own: Mapping[str, Any], client: ClientSettings, data_dirs: Sequence[Path | None]
) -> list[dict[str, Any]]:
    """Settings of each shard, the primary first; `own`: those to set for it. The others look for it at its `bind`."""
    if len(data_dirs) == 1:
        return [dict(own)]
    host = primary.bind.rpartition(":")[0]
    shared = {name: value for name, value in own.items() if name not in ("ready_file", "exit_when_finished")}
    shared |= {"bind": f"{host}:0", "primary": primary.bind, "dashboard": ""}
    if primary.lane_port != -1:
        shared["lane_port"] = 0
    if _is_protected(primary):
        shared["primary_credentials"] = client.credentials
    others = [{**shared, "shard": f"{index}/{len(data_dirs)}"} for index in range(1, len(data_dirs))]
    if primary.shared_memory_socket is not None:
        for index, one in enumerate(others, 1):
            one["shared_memory_socket"] = shard_socket(primary.shared_memory_socket, index)
    return [
        settings if data_dir is None else {**settings, "data_dir": data_dir}
        for settings, data_dir in zip([dict(own), *others], data_dirs, strict=True)
    ]


def merge(data_dirs: Sequence[Path], output: Path) -> str:
    """Replace the checkpoint in `output`; return an error line, or ""."""
    from gem_server.durability import shard_files
    from gem_server.errors import StartupError

    if not any((data_dir / "latest").exists() for data_dir in data_dirs):
        return ""
    (output / "latest").unlink(missing_ok=True)
    try:
        shard_files.merge(data_dirs, output)
    except (OSError, StartupError) as error:
        return f"the shards in {data_dirs[0].parent} were not merged: {error}"
    return ""


def _is_protected(settings: ServerSettings) -> bool:
    return settings.tls.cert is not None or settings.tls.tokens is not None


def _free_port(host: str) -> int:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as one:
            one.bind(address)
            return int(one.getsockname()[1])
    except OSError as error:
        raise CommandError(f"--bind {host}: no free port: {error.strerror}", USAGE) from None
