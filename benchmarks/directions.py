"""What a worker's directions cost, against the gradient, and against matrix products as large as theirs.

    python -m benchmarks.directions [--batch-size 32] [--threads 1] [--device cpu] [--rounds 11]

The model is a transformer of 4.2 million parameters on samples of 64 bytes; other batches and models have other ratios
to the gradient. Everybody takes turns; a ratio is the median of the rounds' ratios. The product is one of square
matrices with as many multiplications as Newton-Schulz has for this model: what remains is its smaller matrices and all
else that a direction does.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from gem_worker.flat_model import FlatModel
from gem_worker.gradient_transform import GradientTransform, Plan
from gem_worker.hidden_matrices import hidden_matrices
from gem_worker.model_sizes import TransformerSizes
from gem_worker.models.transformer import Transformer
from torch.nn import functional

CONTEXT, CLASSES = 64, 256
SIZES = TransformerSizes(layers=5, width=260, heads=10)
# (direction, clip_norm)
DIRECTIONS = (("gradient", 1.0), ("rms", 0.0), ("auto", 0.0), ("auto", 1.0))


def multiplications(flat: FlatModel) -> int:
    """Of five Newton-Schulz iterations over the matrices: two products with m x n, one of m x m."""
    total = 0
    for number in hidden_matrices(flat.tensors):
        m, n = sorted(flat.trained[number].tensor.shape)
        total += 5 * (2 * m * m * n + m**3)
    return total


def gradient_of(model: Transformer, batch_size: int, device: torch.device) -> Callable[[], object]:
    """A forward and backward pass."""
    inputs = torch.randint(CLASSES, (batch_size, CONTEXT), device=device)

    def compute() -> None:
        functional.cross_entropy(model(inputs), inputs).backward()  # type: ignore[no-untyped-call]

    return compute


def direction_of(flat: FlatModel, direction: str, clip_norm: float, first: torch.Tensor) -> Callable[[], object]:
    """A direction of the same gradient again and again."""
    transform = GradientTransform(flat, Plan.of_direction(flat, direction), clip_norm)
    state = transform.new_state()

    def compute() -> None:
        flat.groups[0].gradients.copy_(first)
        transform.clip()
        transform.direct(state)

    return compute


def product_of(count: int, device: torch.device) -> Callable[[], object]:
    """Return one matrix product with about `count` multiplications, in the type of directions on the device."""
    side = round(count ** (1 / 3))
    matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    return lambda: matrix @ matrix


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Of one call, with the device's work."""
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    model = Transformer(CONTEXT, CLASSES, SIZES).to(device)
    flat = FlatModel(model)
    first = torch.randn_like(flat.groups[0].gradients)
    gradient, product = "forward and backward", "one product"
    contenders = {
        gradient: gradient_of(model, arguments.batch_size, device),
        product: product_of(multiplications(flat), device),
        "copy of the gradient": lambda: flat.groups[0].gradients.copy_(first),
    } | {
        f"{direction}, clip-norm {clip_norm:g}": direction_of(flat, direction, clip_norm, first)
        for direction, clip_norm in DIRECTIONS
    }
    for run in contenders.values():
        seconds(run, device)
    rounds = [{name: seconds(run, device) for name, run in contenders.items()} for _ in range(arguments.rounds)]
    print(
        f"{flat.layout.parameter_count:,} parameters, {arguments.batch_size} samples of {CONTEXT} bytes, {device}, "
        f"{arguments.threads} thread(s); medians of {arguments.rounds} rounds"
    )
    print(f"{'':28}{'ms':>10}{'/ gradient':>12}{'/ product':>12}")
    for name in contenders:
        row = f"{name:28}{1000 * statistics.median(one[name] for one in rounds):10.2f}"
        for other in (gradient, product):
            row += f"{statistics.median(one[name] / one[other] for one in rounds):12.3f}"
        print(row)


if __name__ == "__main__":
    main()
