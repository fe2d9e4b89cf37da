"""Scores a model on samples."""

import torch
from torch import nn
from torch.nn import functional

from gem_worker.tasks import Samples, held_out_batches


def score(model: nn.Module, samples: Samples, device: torch.device, batch_size: int = 256) -> tuple[float, float]:
    """Mean cross-entropy (nats a label) and accuracy (0 to 1); leaves `model` in evaluation mode."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64)
    correct = predictions = 0
    with torch.inference_mode():
        for inputs, labels in held_out_batches(samples, batch_size):
            logits = model(inputs.to(device)).float().cpu()
            loss += functional.cross_entropy(logits, labels, reduction="sum").double()
            correct += int((logits.argmax(dim=1) == labels).sum())
            predictions += labels.numel()
    return float(loss) / predictions, correct / predictions
