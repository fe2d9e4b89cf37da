"""`gemps sample`."""

from pathlib import Path
from typing import Annotated

import typer

from gem_cli.errors import USAGE, CommandError
from gem_cli.extras import require


def sample(
    model_file: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_FILE", help="A model.safetensors of the task text, or the folder of a run or a checkpoint."
        ),
    ],
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="Text to continue. Default: the beginning of a line.")
    ] = "",
    length: Annotated[int, typer.Option(metavar="<integer>", help="Bytes to write after the prompt.")] = 500,
    temperature: Annotated[
        float,
        typer.Option(metavar="<number>", help="Below 1 more probable text, above 1 less; 0: the most probable."),
    ] = 1.0,
    seed: Annotated[int, typer.Option(metavar="<integer>", help="Another seed gives another text.")] = 0,
) -> None:
    """Write text with a transformer that was trained on the task text.

    [bold]Examples[/bold]

      gemps sample runs/20260101-120000-text-gem --prompt "The import statement"
    """
    for name, value in (("length", length), ("temperature", temperature), ("seed", seed)):
        if not 0 <= value < 2**63:
            raise CommandError(f"--{name} {value} is not possible: give 0 or more", USAGE)
    require("worker", "sample", "torch", "safetensors")
    from gem_worker.errors import TaskError
    from gem_worker.evaluate import read_model
    from gem_worker.text_generation import generate_text, transformer_of

    try:
        model = transformer_of(read_model(model_file), str(model_file))
    except TaskError as error:
        raise CommandError(str(error)) from None
    print(prompt + generate_text(model, prompt, length=length, temperature=temperature, seed=seed))
