"""`gemps conformance`."""

import difflib
import errno
import json
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gem_cli.errors import FAILED, USAGE, CommandError
from gem_cli.options import help_text
from gem_cli.programs import resolved

if TYPE_CHECKING:
    from gem_conformance import Outcome, Scenario

TERMINATED = 143  # 128 + SIGTERM

conformance_app = typer.Typer(
    name="conformance",
    help="Check whether a worker in any language keeps the contract of gemps.v1 (docs/protocol.md#conformance).",
    no_args_is_help=True,
)


def conformance_serve(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND ARG...]",
            help="The candidate, which is started anew for each scenario. Without it the server waits for one that you "
            "start by hand.",
        ),
    ] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option("--scenario", metavar="NAME", help="Play this one alone. May be given several times."),
    ] = None,
    basic: Annotated[
        bool,
        typer.Option(
            "--basic",
            help="Play only what the simplest worker does: initialise, pull, commit, leave, without failures.",
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Scenarios at the same time.")] = 2,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Without a command: where to listen. Port 0: any.")
    ] = "127.0.0.1:50051",
    answer_seconds: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="Seconds to wait for a candidate's next call or message. Longer lets slower ones pass, and takes "
            "longer to notice that one hangs.",
        ),
    ] = 40.0,
    start_seconds: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a candidate may take from its start to its first call.")
    ] = 90.0,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a scenario, for programs.")] = False,
) -> None:
    """Play scenarios against a worker as a strict server: each is passed, failed, or not supported.

    docs/protocol.md#conformance describes a worker's environment. Failures name the file of the contract with the rule.

    [bold]Examples[/bold]

      gemps conformance serve --basic -- ./my_worker

      gemps conformance serve --scenario dropped-reply
    """
    from gem_conformance import Limits, play_by_hand, play_scenarios

    chosen = _chosen(scenario or [], basic=basic)
    limits = Limits(start=start_seconds, answer=answer_seconds)
    width = max(len(one.name) for one in chosen)
    # SystemExit ends candidates.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    show = _show_json if as_json else lambda outcome: _show(outcome, width)
    try:
        if command:
            candidate = resolved(command, "give the candidate's command after --")
            outcomes = play_scenarios(chosen, candidate, jobs=jobs, limits=limits, on_outcome=show)
        else:
            outcomes = play_by_hand(
                chosen, _checked(listen), limits=limits, on_ready=_print_environment, on_outcome=show
            )
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            fix = "begin it with a line such as #!/bin/sh, or name its interpreter before it"
            raise CommandError(f"{error.filename!r} is no program that the system can start; {fix}", USAGE) from None
        raise CommandError(str(error)) from None
    failed = [one for one in outcomes if one.verdict == "failed"]
    if not as_json:
        _conclude(outcomes, failed)
    if failed:
        raise SystemExit(FAILED)


def list_(
    faults: Annotated[bool, typer.Option("--faults", help="List the faults that a failure may name instead.")] = False,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show what the server does in each scenario, and what the worker must do.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line, for programs.")] = False,
) -> None:
    """List the scenarios; those of --basic are marked, and those that a worker may leave out."""
    from gem_conformance import SCENARIOS
    from gem_conformance.faults import FaultName

    if faults:
        width = max(len(one.name) for one in FaultName)
        for fault in FaultName:
            about = {"fault": fault.name, "about": fault.value}
            print(json.dumps(about) if as_json else f"{fault.name:{width}}  {fault.value}")
        return
    width = max(map(len, SCENARIOS))
    for one in SCENARIOS.values():
        texts = [step.text for step in one.steps]
        if as_json:
            marks = {"basic": one.is_basic, "optional": one.is_optional}
            print(json.dumps({"scenario": one.name, "about": one.about, **marks, "steps": texts}))
        else:
            mark = "basic" if one.is_basic else "optional" if one.is_optional else ""
            print(f"{one.name:{width}}  {mark:8}  {one.about}")
            if steps:
                print(*(f"    {text}" for text in texts), sep="\n")


def _chosen(names: list[str], *, basic: bool) -> "list[Scenario]":
    from gem_conformance import SCENARIOS

    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], SCENARIOS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise CommandError(f"there is no scenario {unknown[0]}: {hint}gemps conformance list shows them all", USAGE)
    chosen = [one for one in SCENARIOS.values() if (not names or one.name in names) and (one.is_basic or not basic)]
    if not chosen:
        raise CommandError("none of these scenarios is a basic one: leave --basic out", USAGE)
    return chosen


def _checked(listen: str) -> str:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise CommandError(f"--listen {listen}: write HOST:PORT, such as 127.0.0.1:50051", USAGE)
    return listen


def _print_environment(scenario: "Scenario", environment: dict[str, str]) -> None:
    """Stdout may be JSON."""
    print(f"{scenario.name}: {scenario.about}. Start the candidate with", file=sys.stderr)
    for name, value in environment.items():
        print(f"  {name}={value}", file=sys.stderr)
    sys.stderr.flush()


def _show(outcome: "Outcome", width: int) -> None:
    name = f"  {outcome.fault.name.name}" if outcome.fault is not None else ""
    print(f"{outcome.scenario:{width}}  {outcome.verdict}{name}", flush=True)


def _show_json(outcome: "Outcome") -> None:
    print(json.dumps(outcome.as_json()), flush=True)


def _conclude(outcomes: "list[Outcome]", failed: "list[Outcome]") -> None:
    for one in failed:
        fault = one.fault
        if fault is None:
            continue
        print(f"\n{one.scenario}: {fault.name.name}, {fault.name.value}")
        print(f"  expected  {fault.expected}\n  came      {fault.came}")
        if fault.after:
            print(f"  after     {fault.after}")
        print(f"  step      {fault.step}\n  see       {fault.place.value}")
        for line in one.output:
            print(f"  | {line}")
    counts = {
        verdict: sum(one.verdict == verdict for one in outcomes) for verdict in ("passed", "failed", "not supported")
    }
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))


for name, function in (("serve", conformance_serve), ("list", list_)):
    conformance_app.command(name=name, help=help_text(function))(function)
