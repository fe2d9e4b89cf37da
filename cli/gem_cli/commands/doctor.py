"""`gemps doctor`."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer
from gem_server.settings import ServerSettings
from gem_worker.client.settings import ClientSettings
from gem_worker.settings import WorkerSettings
from rich.console import Console
from rich.text import Text

from gem_cli.commands.connection import CONNECTION, DEFAULT_ADDRESS, Address, Server, one_address
from gem_cli.commands.known import KNOWN
from gem_cli.doctor.check_result import CheckResult, Level, problem
from gem_cli.errors import FAILED, CommandError
from gem_cli.options import Given, OptionGroup, with_options

_WORKER = OptionGroup(WorkerSettings, "Worker", frozenset(WorkerSettings.model_fields) - {"device"})
_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


@with_options(CONNECTION, _WORKER, known=KNOWN)
def doctor(
    given: Given,
    address: Address = DEFAULT_ADDRESS,
    server: Server = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Print versions, and check Python, PyTorch, GPU, threads, memory, and the path to a server.

    The first line, with the versions, belongs into a bug report. Exit code 1: a problem.

    [bold]Examples[/bold]

      gemps doctor

      gemps doctor 192.168.1.5:50051 --credentials certs/observer
    """
    findings = []
    show = _show_nothing if as_json else _show
    for finding in _findings(given, one_address(address, server)):
        findings.append(finding)
        show(finding)
    has_problem = any(finding.level is Level.PROBLEM for finding in findings)
    if as_json:
        checks = [{"check": one.check, "level": one.level.value, "text": one.text} for one in findings]
        print(json.dumps({"ok": not has_problem, "checks": checks}))
    if has_problem:
        raise SystemExit(FAILED)


def _findings(given: Given, address: str) -> Iterator[CheckResult]:
    from gem_cli.doctor import gpu, machine, packages
    from gem_cli.doctor.server import Visit, check_shared_memory, is_this_machine

    yield packages.list_versions()
    yield packages.check_python()
    yield from packages.check_packages()
    yield packages.check_torch_pair()
    try:
        worker, connection = given.load(WorkerSettings), given.load(ClientSettings)
        sharing = given.load(ServerSettings).shared_memory_socket
    except CommandError as error:
        yield problem("settings", str(error))
        return
    if packages.installed("torch") is not None:
        yield gpu.check_device(gpu.probe_torch(), gpu.inspect_hardware(), worker.device)
    yield machine.check_threads()
    yield machine.check_variables()
    is_named = address != DEFAULT_ADDRESS or "GEMPS_SERVER" in os.environ
    visit = Visit(address, connection, expected=is_named)
    yield from visit.findings()
    parameters = int(visit.status.get("parameter_count", 0)) if visit.status else 0
    yield machine.check_memory(machine.available_bytes(), parameters or None)
    yield machine.check_clock(
        datetime.now(UTC),
        over_tls=visit.status is not None and bool(connection.tls_ca),
        same_machine=is_this_machine(address),
    )
    yield check_shared_memory(sharing)


def _show(finding: CheckResult) -> None:
    console = Console(highlight=False)
    line = Text(f"{finding.level.value:8}", _STYLES[finding.level])
    line.append(f"{finding.check}: {finding.text}", "not bold default")
    console.print(line, soft_wrap=True)


def _show_nothing(_: CheckResult) -> None:
    pass
