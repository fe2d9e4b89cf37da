"""`gemps work`."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional

from gem_worker.client import ClientError, ClientSettings, Membership
from gem_worker.client.engine import default_worker_name
from gem_worker.devices import describe_device, device_for
from gem_worker.errors import DivergedError, TaskError, UnsupportedModelError
from gem_worker.exit_status import status_of
from gem_worker.models import model_for_task
from gem_worker.parameter_server import ParameterServer
from gem_worker.progress import Progress
from gem_worker.seeds import dropout_seed
from gem_worker.settings import WorkerSettings
from gem_worker.tasks import Task, TaskOptions, create_task, steps_per_epoch, training_batches
from gem_worker.termination import TerminatedError

FINISHED, INTERRUPTED = 0, 130


def work(settings: WorkerSettings, client_settings: ClientSettings | None = None) -> int:
    """Train until the run is finished; return the exit code (docs/command-line.md)."""
    name = settings.worker_name or default_worker_name()
    progress = Progress(name, settings.log_interval, settings.log_format)
    try:
        _train(settings, client_settings, name, progress)
    except (ClientError, DivergedError, TaskError, UnsupportedModelError) as error:
        print(f"gemps work: {error}", file=sys.stderr, flush=True)
        return status_of(error)
    except KeyboardInterrupt:
        progress.summary("interrupted")
        return INTERRUPTED
    except TerminatedError as end:
        progress.summary("terminated")
        return int(end.code or 0)
    progress.summary("the run is finished")
    return FINISHED


def _train(settings: WorkerSettings, client_settings: ClientSettings | None, name: str, progress: Progress) -> None:
    torch.set_num_threads(settings.cpu_threads)
    task = create_task(settings.task, TaskOptions.from_settings(settings))
    model_name = settings.model or task.default_model
    # Joining needs the layout, and `prepare` then sets device and seed.
    model = model_for_task(task, model_name, seed=0)
    device_for(0, settings.device)  # fail before joining
    device = torch.device("cpu")

    def prepare(membership: Membership) -> None:
        nonlocal device
        device = device_for(membership.host_rank, settings.device)
        if not membership.has_parameters:
            first = model_for_task(task, model_name, membership.run_settings.seed)
            model.load_state_dict(first.state_dict())
        model.to(device)
        torch.manual_seed(dropout_seed(membership.run_settings.seed, membership.rank))

    session = ParameterServer(
        settings.server,
        model,
        name=name,
        run=settings.run,
        steps_per_epoch=steps_per_epoch(len(task.train), settings.batch_size),
        delta_wire=settings.delta_wire,
        parameter_wire=settings.parameter_wire,
        network=settings.network,
        on_join=prepare,
        device=describe_device(settings.device),
        on_event=progress.event,
        client_settings=client_settings,
    )
    with session as ps:
        rule = ps.run_settings.rule
        exchange = "shared-memory" if ps.shares_memory else "network"
        progress.joined(
            ps.rank, device=str(device), task=task.name, model=model_name, rule=rule, eta=ps.eta, exchange=exchange
        )
        _loop(ps, model, task, device, settings.batch_size, progress)


def _loop(
    ps: ParameterServer, model: nn.Module, task: Task, device: torch.device, batch_size: int, progress: Progress
) -> None:
    if ps.finished:  # before this worker joined
        return
    model.train()
    for epoch, (inputs, labels) in training_batches(task.train, batch_size, ps.run_settings.seed, ps.rank):
        loss = functional.cross_entropy(model(_to(inputs, device)), _to(labels, device))
        loss.backward()  # type: ignore[no-untyped-call]
        before = ps.last_report
        ps.step(loss, samples=len(labels))
        if ps.last_report is not None and ps.last_report is not before:
            progress.step(ps.last_report, epoch)
        if ps.finished:
            return


def _to(batch: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda":
        return batch.pin_memory().to(device, non_blocking=True)
    return batch.to(device)
