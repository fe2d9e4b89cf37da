"""The command `gemps reproduce`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from gem_worker.client.operating_system import usable_processors
from rich.console import Console

from gem_cli.errors import FAILED, USAGE, CommandError
from gem_cli.extras import require
from gem_core.rule_settings import parse_settings

if TYPE_CHECKING:
    from gem_reproduction.reproduction import FigureResult
    from gem_reproduction.runs import Scope

TASKS = ("digits", "digits28", "fashion-mnist", "mnist")
# Tasks that read files.
FILE_TASKS = ("fashion-mnist", "mnist")
MODELS = ("cnn", "mlp")


def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(
            metavar="FIGURE...",
            help="1a 1b 1c 1d 2 3 4 5 6 7 8 9 10 of the paper, exchanges, or all of these; rules, sweeps, wire-types, "
            "heterogeneity, better-default, samples, or beyond for these. 1 means 1a to 1d.",
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="200 steps a worker instead of the paper's 937.")] = False,
    task: Annotated[
        str,
        typer.Option(
            metavar="<choice>",
            help="digits (8 x 8), digits28 (the same, enlarged to 28 x 28, for the paper's very CNN), fashion-mnist "
            "(as many images of the same size as MNIST has) or mnist, the paper's own.",
        ),
    ] = "digits",
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder that holds the task's files. Without it fashion-mnist also reads Debian's package.",
        ),
    ] = Path("data"),
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with train/CLASS/*.jpg and val/CLASS/*.jpg for figure 7, which else makes images.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="<choice>", help="cnn, the paper's, or mlp, which is quicker and proves less.")
    ] = "cnn",
    output: Annotated[
        Path,
        typer.Option(metavar="DIR", help="For runs, pictures and results.json. Runs that it has are not done again."),
    ] = Path("runs/reproduction"),
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="<integer>", help="Runs at once; without it one for each core.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, metavar="<integer>", help="Runs that are averaged.")] = 3,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="<integer>", help="Steps of each worker, instead of 937 or 200.")
    ] = None,
    rule_settings: Annotated[
        str,
        typer.Option(
            metavar="<text>",
            help="Settings of GEM in all runs, as NAME=VALUE,NAME=VALUE: momentum=0, to see which claims fail then.",
        ),
    ] = "",
) -> None:
    """Repeat the paper's figures: runs, pictures, and a verdict on each claim.

    The same command continues what was interrupted. Exit code 1: a claim that must hold is not met.

    [bold]Examples[/bold]

      gemps reproduce 1 3 --task mnist --data data
    """
    if task not in TASKS:
        raise CommandError(f"--task {task}: choose one of {', '.join(TASKS)}", USAGE)
    if model not in MODELS:
        raise CommandError(f"--model {model}: choose one of {', '.join(MODELS)}", USAGE)
    if images is not None and not (images / "train").is_dir():
        raise CommandError(f"--images {images}: there is no folder {images / 'train'} with a folder a class", USAGE)
    try:
        settings = parse_settings(rule_settings)
    except ValueError as error:
        raise CommandError(f"--rule-settings: {error}", USAGE) from None
    require("lab", "reproduce", "torch", "numba", "matplotlib")
    from gem_reproduction.errors import ReproductionError
    from gem_reproduction.figures import choose
    from gem_reproduction.reproduction import RESULTS, reproduce, runs_of
    from gem_reproduction.runs import PAPER_STEPS, QUICK_STEPS, Scope
    from gem_worker.errors import TaskError

    from gem_cli.reproduction_view import choose_view
    from gem_core import RuleError, create_rule

    try:
        chosen = choose(figures)
    except ReproductionError as error:
        raise CommandError(str(error), USAGE) from None
    try:
        create_rule("gem", **settings)
        if task in FILE_TASKS:
            _check_files(task, data)
        scope = Scope(
            quick, task, model, data, images, steps or (QUICK_STEPS if quick else PAPER_STEPS), seeds, settings
        )
        with choose_view(runs_of(chosen, scope)) as view:
            findings = reproduce(chosen, scope, output, jobs or usable_processors(), view.done)
    except RuleError as error:
        raise CommandError(f"--rule-settings: {error}", USAGE) from None
    except (ReproductionError, TaskError) as error:
        raise CommandError(str(error)) from None
    _print_results(findings, scope)
    print(f"written to {output}: {RESULTS}, and a picture of each figure")
    if any(verdict.must_hold and not verdict.met for one in findings for verdict in one.verdicts):
        raise SystemExit(FAILED)


def _check_files(task: str, data: Path) -> None:
    from gem_worker.errors import TaskError
    from gem_worker.tasks import TaskOptions, create_task

    try:
        create_task(task, TaskOptions(dataset_dir=data))
    except TaskError as error:
        missing, _, fixes = str(error).replace("--dataset-dir", "--data").partition("; ")
        fixes = fixes.replace("add --download", f"fetch them with gemps train --task {task} --download")
        raise CommandError(f"--data {data}: {missing}; {fixes}") from None


def _print_results(findings: Sequence["FigureResult"], scope: "Scope") -> None:
    console = Console(highlight=False)
    for one in findings:
        console.print(f"\n[bold]{one.figure.title}[/bold]  [dim]({one.figure.subtitle(scope)})[/dim]", soft_wrap=True)
        for verdict in one.verdicts:
            word = "[green]met[/green]" if verdict.met else "[red]NOT MET[/red]"
            kind = "" if verdict.must_hold else " [dim](need not hold)[/dim]"
            console.print(f"  {word}  {verdict.claim}{kind}", soft_wrap=True)
            for row, columns in verdict.numbers.items():
                values = ", ".join(f"{name} {value:.4g}" for name, value in columns.items())
                console.print(f"           {row}: {values}", markup=False, style="dim", soft_wrap=True)
    print()
