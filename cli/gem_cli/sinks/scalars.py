"""Status as scalars."""

from gem_cli import status_view
from gem_cli.sinks.interface import Scalars
from gem_cli.status_view import Status


def scalars(status: Status) -> Scalars:
    """Known figures by name."""
    found = status_view.figures(status)
    queue, memory = status.get("queue", {}), status.get("memory", {})
    values = {
        "run/loss": found["loss"],
        "run/commits_per_second": status.get("commits_per_second"),
        "run/learning_rate": status.get("next_eta"),
        "run/staleness": found["staleness"],
        "run/workers": status_view.live_workers(status),
        "gem/mean_pi": found["mean_pi"],
        "gem/blocked_fraction": found["blocked"],
        "fairness/jain_index": status.get("jain_index"),
        "server/queue_length": queue.get("length"),
        "server/anonymous_mib": memory.get("anonymous_bytes", 0) / 2**20,
    }
    for worker in status.get("workers", ()):
        name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in str(worker.get("name", "")))
        if worker.get("commits"):
            values[f"loss by worker/{name}"] = worker.get("loss")
            values[f"staleness by worker/{name}"] = worker.get("staleness_last")
    return {name: float(value) for name, value in values.items() if value is not None}


def evaluation(status: Status) -> tuple[int, Scalars] | None:
    """Newest evaluation's (version, figures)."""
    seen = status.get("last_evaluation")
    if not seen:
        return None
    names = ("loss", "accuracy", "bits_per_character")
    return status_view.clock(seen), {f"evaluation/{name}": seen[name] for name in names if name in seen}
