"""A worker of gemps: `python -m benchmarks.time_to_loss.gemps_worker [--adamw]`."""

import argparse

from gem_worker import ParameterServer

from benchmarks.time_to_loss.worker_context import WorkerContext
from benchmarks.time_to_loss.workload import adamw


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adamw", action="store_true", help="hand AdamW to gemps, which translates it")
    given = parser.parse_args()
    context = WorkerContext.from_environment()
    model = context.model()
    optimizer = adamw(model, context.rate) if given.adamw else None
    with ParameterServer(context.server, model, optimizer=optimizer, name=f"worker-{context.rank}") as ps:
        batches = context.begin()
        while True:
            report = ps.step(context.gradient(model, batches), samples=context.workload.batch)
            if report.version is not None and not report.local:
                context.show(model, report.version.clock)


if __name__ == "__main__":
    main()
