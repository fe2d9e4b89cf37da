"""Text from a trained transformer: `gemps evaluate --sample`."""

from pathlib import Path

from gem_cli.errors import USAGE, CommandError
from gem_cli.extras import require

_DEFAULT_TEMPERATURE, _DEFAULT_SEED = 1.0, 0


def sample(model_file: Path, length: int, *, prompt: str | None, temperature: float | None, seed: int | None) -> str:
    """The prompt, and `length` bytes of text that the model of `model_file` writes after it.

    Args:
        model_file: a model.safetensors of the task text, or the folder of a run or a checkpoint.
        length: number of bytes to write.
        prompt: text to continue; None: the beginning of a line.
        temperature: divides the logits; None: 1.
        seed: of the random choices; None: 0.

    Raises CommandError if a number is out of range, and if the file does not have such a model.
    """
    temperature = _DEFAULT_TEMPERATURE if temperature is None else temperature
    seed = _DEFAULT_SEED if seed is None else seed
    for name, value in (("sample", length), ("temperature", temperature), ("seed", seed)):
        if not 0 <= value < 2**63:
            raise CommandError(f"--{name} {value} is not possible: give 0 or more", USAGE)
    require("worker", "evaluate --sample", "torch", "safetensors")
    from gem_worker.errors import TaskError
    from gem_worker.evaluate import read_model
    from gem_worker.text_generation import generate_text, transformer_of

    beginning = prompt or ""
    try:
        model = transformer_of(read_model(model_file), str(model_file))
    except TaskError as error:
        raise CommandError(str(error)) from None
    return beginning + generate_text(model, beginning, length=length, temperature=temperature, seed=seed)
