"""How well a model does on a set of samples."""

import torch
from torch import nn
from torch.nn import functional

from gem_worker.tasks import Samples, held_out_batches


def score(model: nn.Module, samples: Samples, device: torch.device, batch_size: int = 256) -> tuple[float, float]:
    """(mean cross-entropy, accuracy from 0 to 1) of `model`, which is on `device`, over all `samples`.

    The model is in evaluation mode afterwards: nothing is dropped, and BatchNorm uses what it has learnt.
    """
    model.eval()
    loss = torch.zeros((), dtype=torch.float64)
    correct = 0
    with torch.inference_mode():
        for inputs, labels in held_out_batches(samples, batch_size):
            logits = model(inputs.to(device)).float().cpu()
            loss += functional.cross_entropy(logits, labels, reduction="sum").double()
            correct += int((logits.argmax(dim=1) == labels).sum())
    return float(loss) / len(samples), correct / len(samples)
