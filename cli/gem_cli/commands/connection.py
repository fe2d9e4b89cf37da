"""Options and connection of client commands."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from gem_worker.client.settings import ClientSettings

from gem_cli.errors import USAGE, CommandError, refused
from gem_cli.options import Given, OptionGroup

if TYPE_CHECKING:
    from gem_worker.client import Observer

# Without the token: process arguments are public.
_FLAGS = frozenset({"credentials", "tls_ca", "tls_cert", "tls_key", "tls_server_name", "token_file"})
CONNECTION = OptionGroup(ClientSettings, "Connection", frozenset(ClientSettings.model_fields) - _FLAGS)

DEFAULT_ADDRESS = "127.0.0.1:50051"
Address: TypeAlias = Annotated[
    str, typer.Argument(envvar="GEMPS_SERVER", metavar="[ADDRESS]", help="HOST:PORT of the server.")
]

Server: TypeAlias = Annotated[
    str | None, typer.Option("--server", metavar="<address>", help="The same as ADDRESS.", show_default=False)
]


def one_address(address: str, server: str | None) -> str:
    """Return ADDRESS or --server; raise CommandError for both."""
    if server is None:
        return address
    if address not in (DEFAULT_ADDRESS, os.environ.get("GEMPS_SERVER")):
        raise CommandError("the server's address stands there twice: give it as ADDRESS, or with --server", USAGE)
    return server


@contextmanager
def connected(
    address: str, given: Given, *, quiet: bool = False, fallback: Mapping[str, Any] = MappingProxyType({})
) -> "Iterator[Observer]":
    """Yield an Observer; `fallback`: settings instead of the defaults. Raises CommandError."""
    settings = given.load(ClientSettings, fallback=fallback)
    from gem_worker.client import ClientError, Observer

    try:
        on_event = (lambda _: None) if quiet else None
        with Observer(address, settings=settings, on_event=on_event) as observer:
            yield observer
    except ClientError as error:
        raise refused(error) from None
