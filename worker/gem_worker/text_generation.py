"""Text from a trained transformer."""

import torch
from torch import Tensor

from gem_worker.errors import TaskError
from gem_worker.model_sizes import TransformerSizes
from gem_worker.models.transformer import Transformer

# Default prompt.
_START = b"\n"


def transformer_of(tensors: dict[str, Tensor], source: str) -> Transformer:
    """The tensors' model. Raises TaskError (naming `source`) if it is no transformer."""
    try:
        classes, width = tensors["embedding.weight"].shape
        context, layers = len(tensors["positions.weight"]), 1 + max(map(_layer_number, tensors))
        sizes = TransformerSizes(layers, width, len(tensors["heads"]))
        model = Transformer(context, classes, sizes)
        model.load_state_dict(tensors)
    except (KeyError, ValueError, RuntimeError) as error:
        raise TaskError(
            f"{source} does not hold the model transformer; give a model that gemps train --task text wrote"
        ) from error
    return model.eval()


def generate_text(model: Transformer, prompt: str, *, length: int, temperature: float = 1.0, seed: int = 0) -> str:
    """`length` bytes of text after `prompt`; incomplete characters become U+FFFD.

    `temperature` divides the logits; 0: the most probable byte.
    """
    text = list(prompt.encode(errors="surrogateescape") or _START)
    begin = len(text)
    context = model.positions.num_embeddings
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        for _ in range(length):
            logits = model(torch.tensor([text[-context:]]))[0, :, -1]
            if temperature:
                chances = torch.softmax(logits.double() / temperature, dim=0)
                text.append(int(torch.multinomial(chances, 1, generator=generator)))
            else:
                text.append(int(logits.argmax()))
    return bytes(text[begin:]).decode(errors="replace")


def _layer_number(name: str) -> int:
    """3 for "layers.3.norm1.weight", -1 outside the layers."""
    first, _, rest = name.partition(".")
    return int(rest.partition(".")[0]) if first == "layers" else -1
