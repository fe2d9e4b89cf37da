"""The checks of `gemps doctor` for a server."""

import re
import socket
import ssl
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gem_worker.client.operating_system import HAS_SHARED_MEMORY, packet_socket
from gem_worker.client.settings import ClientSettings

from gem_cli import status_view
from gem_cli.doctor.check_result import CheckResult, ok, problem, warning

_PATIENCE_SECONDS = 10.0
_MIB = 1 << 20


class Visit:
    """A query of a server. `findings` sets `status` if the server answers."""

    def __init__(self, address: str, settings: ClientSettings, *, expected: bool) -> None:
        """Prepare the query. `expected` says whether the user gave the address."""
        self._address = address
        self._settings = settings.model_copy(update={"progress_timeout": _PATIENCE_SECONDS})
        self._expected = expected
        self.status: dict[str, Any] | None = None

    def findings(self) -> Iterator[CheckResult]:
        """Judge the server's status."""
        from gem_worker.client import AddressError, ClientError, CredentialsError, Observer, ServerRefusedError

        try:
            with Observer(self._address, settings=self._settings, on_event=lambda _: None) as observer:
                self.status = observer.get_status()
        except (AddressError, CredentialsError) as error:
            yield problem("server", str(error))
        except ServerRefusedError as refusal:
            yield self._refused(refusal.reason, str(refusal))
        except ClientError as error:
            yield self._not_reached(str(error))
        else:
            yield from self._check_status(self.status)

    def _refused(self, reason: str, text: str) -> CheckResult:
        if reason == "ROLE":
            return warning(
                "server",
                f"{self._address} knows this token, but shows its status to observers and operators only: as it should "
                "be for a worker's",
            )
        if reason == "CREDENTIALS":
            if self._settings.token is None and self._settings.token_file is None:
                text = "it asks for a token, and none is given here"
            return problem(
                "server",
                f"{self._address}: {text}; --token-file (GEMPS_CLIENT_TOKEN_FILE) names the file with a token of the "
                "server's tls.tokens, --credentials a folder of gemps certs",
            )
        if reason == "UNIMPLEMENTED":
            return problem(
                "server", f"{self._address}: {text}; if it is one, its version is not this one's, {version('gemps')}"
            )
        return problem("server", f"{self._address}: {text}")

    def _not_reached(self, text: str) -> CheckResult:
        if "(STARTING:" in text:
            return warning("server", f"{self._address} is starting: it reads its checkpoint or compiles; wait for it")
        if not self._settings.tls_ca and speaks_tls(self._address):
            return problem(
                "server",
                f"{self._address} speaks TLS only: give the authority of its certificate by --tls-ca "
                "(GEMPS_CLIENT_TLS_CA), or a folder of gemps certs by --credentials",
            )
        if re.search("expired|not yet valid", text):
            text = f"{text}; or is this machine's clock wrong?"
        if not self._expected and "refused" in text:
            return warning(
                "server", f"none at {self._address}: gemps serve starts one; gemps doctor ADDRESS checks another"
            )
        return problem("server", text)

    def _check_status(self, status: dict[str, Any]) -> Iterator[CheckResult]:
        state = status_view.state(status)
        text = f"{self._address} answers: {state.lower()}, version {status_view.clock(status)}"
        if state == "FINISHED":
            yield warning(
                "server", f"{text}: workers are sent home; a larger budget, or another --data-dir, begins anew"
            )
        else:
            yield ok("server", f"{text}, {status_view.workers_in_words(status_view.live_workers(status))}")
        yield ok("rule", status_view.rule_line(status))
        yield self._version(str(status.get("server_version", "")))
        yield _room(status.get("memory", {}), status)
        yield self._protection()

    def _version(self, theirs: str) -> CheckResult:
        own = version("gemps")
        if theirs == own:
            return ok("version", f"gemps {own} on both sides")
        return warning("version", f"the server is gemps {theirs}, this is {own}: install the same on both sides")

    def _protection(self) -> CheckResult:
        if self._settings.tls_ca:
            return ok("tls", "the server's certificate is good, and is one of the given authority's")
        if is_this_machine(self._address):
            return ok("tls", "none, and none is needed on one machine")
        return warning("tls", "none: others on the network path can read and change all traffic (gemps certs)")


def _room(memory: dict[str, Any], status: dict[str, Any]) -> CheckResult:
    limit, reserved, worker = (int(memory.get(f"{name}_bytes", 0)) for name in ("limit", "reserved", "worker"))
    told = f"{reserved // _MIB:,} of {limit // _MIB:,} MiB promised"
    if not status.get("parameter_count"):
        return ok("room", f"{told}; the first worker settles the model")
    if worker > limit - reserved:
        return problem(
            "room",
            f"{told}, and a further worker takes {worker / _MIB:,.1f} MiB: raise --memory-limit or have fewer "
            "limits.staging_buffers at the server, or start fewer workers",
        )
    return ok("room", f"{told}; a further worker takes {worker / _MIB:,.1f} MiB")


def check_shared_memory(path: Path | None) -> CheckResult:
    """Connect to the shared memory socket."""
    if path is None:
        return ok("shared memory", "no GEMPS_SHARED_MEMORY_SOCKET here; a worker's first line says how it exchanges")
    if not HAS_SHARED_MEMORY:
        return ok("shared memory", "Linux only: workers here use the network")
    if not path.is_socket():
        return problem(
            "shared memory",
            f"there is no socket at {path}: is the server there, with the same --shared-memory-socket? Between "
            "containers its folder must be a volume, at the same path",
        )
    with packet_socket() as connection:
        connection.settimeout(_PATIENCE_SECONDS)
        try:
            connection.connect(str(path))
        except OSError as error:
            return problem(
                "shared memory", f"{path} does not answer ({error.strerror}): restart the server that made it"
            )
    return ok("shared memory", f"{path} answers")


def is_this_machine(address: str) -> bool:
    """Whether the address is one of this machine."""
    host = address.rpartition(":")[0].strip("[]")
    return address.startswith("unix:") or host in ("localhost", "::1") or host.startswith("127.")


def speaks_tls(address: str) -> bool:
    """Whether a TLS handshake succeeds, with any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_SECONDS) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except (OSError, ValueError):  # no TLS or no listener
        return False
