"""`gemps certs`."""

import os
import re
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from gem_worker.client.operating_system import set_mode

from gem_cli.errors import USAGE, CommandError
from gem_cli.extras import require
from gem_core.regular_files import read_bytes

if TYPE_CHECKING:
    from gem_cli.certificates import Pair

ROLES = ("worker", "observer", "operator")
NAMES = ("server", "localhost", "127.0.0.1", "::1")
# With underscores, which names of hosts should not have, but those of compose services and Windows machines do.
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(\*\.)?{_LABEL}(\.{_LABEL})*")


def certs(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where to put it all; made when it is missing. Default: certs.")
    ] = Path("certs"),
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="<text>",
            help="Name or IP address by which workers reach the server, in addition to server, localhost, 127.0.0.1 "
            "and ::1. May be given several times.",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="Days until the certificates end; the authority lasts ten years.")
    ] = 365,
    containers: Annotated[
        bool,
        typer.Option(
            "--containers",
            help="Let other users read the files, since a container's user is another one. FOLDER itself stays closed "
            "to them, so that only who mounts a folder that is in it gives it away.",
        ),
    ] = False,
) -> None:
    """Create an authority, certificates, and tokens by role.

    Give --credentials FOLDER/server, FOLDER/worker, FOLDER/observer (to watch and evaluate) or FOLDER/operator (also
    to end a run). FOLDER/ca.key signs certificates: do not copy it.

    Existing files stay. To renew a certificate, delete it and its key and run this again with the same names.

    [bold]Examples[/bold]

      gemps certs --name 10.77.0.1

      gemps serve --bind 0.0.0.0:50051 --credentials certs/server

      gemps work 10.77.0.1:50051 --credentials certs/worker
    """
    asked = [_without_dot(one) for one in name or ()]
    names = list(dict.fromkeys([*asked, *NAMES]))
    require("certs", "certs")
    from gem_cli.certificates import Authority, Pair, is_address

    for one in names:
        if not is_address(one) and not _NAME.fullmatch(one):
            raise CommandError(f"--name {one}: write a host's name or an IP address, without scheme and port", USAGE)
    files = _Files(folder, readable=containers)
    try:
        _check_names(folder / "server", asked)
        files.make_folder(folder, 0o700)
        authority_pair = files.pair("ca", lambda: Authority.make().pair, key_mode=0o600)
        try:
            authority = Authority(Pair(*authority_pair))
        except ValueError as error:
            raise CommandError(f"{folder}/ca.crt and ca.key are no authority of this command ({error})") from None
        for part in ("server", *ROLES):
            files.make_folder(folder / part, 0o755 if containers else 0o700)
            if files.make(f"{part}/ca.crt", lambda: authority.pair.certificate) != authority.pair.certificate:
                raise CommandError(
                    f"{folder}/{part}/ca.crt is of another authority than {folder}/ca.crt: delete {part}"
                )
        files.pair("server/server", partial(authority.for_server, names, days))
        for role in ROLES:
            files.pair(f"{role}/client", partial(authority.for_client, f"gemps-{role}", days))
        _make_tokens(files, folder)
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be read or written: {error.strerror}") from None
    _report(folder, files.made, names)


def _without_dot(name: str) -> str:
    """A name as certificates have it: `server.example.` is `server.example`, written absolutely for DNS."""
    return name[:-1] if name.endswith(".") and not name.endswith("..") else name


class _Files:
    def __init__(self, folder: Path, *, readable: bool) -> None:
        self._folder = folder
        self._mode = 0o644 if readable else 0o600
        self.made: list[str] = []

    def make_folder(self, path: Path, mode: int) -> None:
        if not path.is_dir():
            path.mkdir(0o700, parents=True)
            path.chmod(mode)

    def make(self, name: str, content: Callable[[], bytes], mode: int | None = None) -> bytes:
        path = self._folder / name
        try:
            return read_bytes(path)
        except FileNotFoundError:
            data = content()
        # Mode set at creation; never follow links.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            set_mode(file.fileno(), self._mode if mode is None else mode)
        self.made.append(name)
        return data

    def pair(self, name: str, make: Callable[[], "Pair"], key_mode: int | None = None) -> tuple[bytes, bytes]:
        paths = [self._folder / f"{name}.{ending}" for ending in ("crt", "key")]
        missing = [path for path in paths if not path.exists()]
        if len(missing) == 1:
            (there,) = set(paths) - set(missing)
            raise CommandError(
                f"{there} is there and {missing[0]} is not: put that back, or delete {there} to have both made anew"
            )
        if not missing:
            return read_bytes(paths[0]), read_bytes(paths[1])
        pair = make()
        # A server reloading in between finds no pair and keeps its own.
        return self.make(f"{name}.crt", lambda: pair.certificate), self.make(f"{name}.key", lambda: pair.key, key_mode)


def _check_names(folder: Path, wanted: list[str]) -> None:
    from gem_cli.certificates import names_of

    path = folder / "server.crt"
    if not wanted or not path.exists():
        return
    try:
        found = names_of(read_bytes(path))
    except ValueError as error:
        raise CommandError(f"{path} is no certificate of a server ({error}): delete it and server.key") from None
    missing = [one for one in wanted if one not in found]
    if missing:
        raise CommandError(
            f"{path} is for {', '.join(found)}, not for {', '.join(missing)}: delete it and server.key, and run this "
            "again with all names"
        )


def _make_tokens(files: _Files, folder: Path) -> None:
    names = [f"{role}/token" for role in ROLES]
    missing = [name for name in names if not (folder / name).exists()]
    if missing and (folder / "server/tokens").exists():
        raise CommandError(
            f"{folder}/server/tokens is there and {folder}/{missing[0]} is not: put that back, or delete "
            "server/tokens to have both made anew"
        )
    tokens = [files.make(name, lambda: secrets.token_hex(32).encode() + b"\n").strip() for name in names]
    lines = [b"%s %s\n" % (role.encode(), token) for role, token in zip(ROLES, tokens, strict=True)]
    files.make("server/tokens", lambda: b"# A line each: ROLE TOKEN\n" + b"".join(lines))


def _report(folder: Path, made: list[str], names: list[str]) -> None:
    if not made:
        print(f"nothing is missing in {folder}, and nothing was changed")
        return
    print(f"made in {folder}: {', '.join(made)}")
    if "server/server.crt" in made:
        print(f"The server's certificate is for {', '.join(names)}.")
    address = next((one for one in names if one not in NAMES), "localhost")
    host = f"[{address}]" if ":" in address else address
    print(
        f"\nOn the server's machine:\n  gemps serve --bind 0.0.0.0:50051 --credentials {folder / 'server'}\n"
        f"On a worker's machine, with a copy of {folder / 'worker'}:\n"
        f"  gemps work {host}:50051 --credentials {folder / 'worker'}\n"
        f"To watch the run:\n  gemps status {host}:50051 --credentials {folder / 'observer'}\n"
        "In the environment that is GEMPS_CREDENTIALS for the server, and GEMPS_CLIENT_CREDENTIALS for all others.\n"
        f"Keep {folder / 'ca.key'} to yourself: it can sign certificates for any role."
    )
