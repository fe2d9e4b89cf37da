"""A worker of gemps: `python -m benchmarks.time_to_loss.gemps_worker [--every H] [--delta-wire T ...]`."""

import argparse

from gem_worker import ParameterServer

from benchmarks.time_to_loss.worker_context import WorkerContext
from benchmarks.time_to_loss.workload import adamw


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", help="local steps of AdamW; else the server optimizes")
    parser.add_argument("--delta-wire", default="float32")
    parser.add_argument("--parameter-wire", default="float32")
    given = parser.parse_args()
    context = WorkerContext.from_environment()
    model = context.model()
    optimizer = None if given.every is None else adamw(model, context.rate)
    with ParameterServer(
        context.server,
        model,
        optimizer=optimizer,
        every=1 if given.every is None else given.every if given.every == "auto" else int(given.every),
        name=f"worker-{context.rank}",
        delta_wire=given.delta_wire,
        parameter_wire=given.parameter_wire,
    ) as ps:
        batches = context.begin()
        while True:
            report = ps.step(context.gradient(model, batches), samples=context.workload.batch)
            if report.version is not None and not report.local:
                context.show(model, report.version.clock)


if __name__ == "__main__":
    main()
