"""Ray actors."""

import math
import os
import signal
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from gem_cli.errors import FAILED, USAGE, CommandError
from gem_cli.options import to_arguments
from gem_cli.programs import resolved
from gem_cli.training.children import Child, gemps, wait
from gem_cli.training.training_run import Interrupts
from gem_worker.client.settings import variables_for_workers
from gem_worker.exit_status import FINISHED_BEFORE
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NAMESPACE = "gemps"
POLL, PLACE_SECONDS = 0.5, 5.0
LOG_SECONDS = 2.0  # Ray's logs lag
LEAVE_SECONDS, STOP_SECONDS = 300.0, 60.0


class Program:
    """Runs a child process; its failure ends the actor."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._child: Child | None = None
        self._stopped = False

    def __repr__(self) -> str:
        return self._name

    def stop(self) -> None:
        """Send SIGTERM."""
        self._stopped = True
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def _run_child(self, command: Sequence[str], environment: Mapping[str, str], final: Sequence[int]) -> int:
        # SIGKILL: no two at once.
        out = Path("/dev/stdout")
        child = self._child = Child(self._name, command, out, environment=environment, orphan_signal=signal.SIGKILL)
        if self._stopped:
            self.stop()
        wait([child], math.inf)
        code = child.exit_code or 0
        if code in final or self._stopped:
            return 0 if self._stopped else code
        print(f"ended with exit code {code}", flush=True)
        os._exit(FAILED)


class Server(Program):
    """`gemps serve`."""

    def __init__(self, name: str, settings: Mapping[str, Any], port: int, primary: Any = None) -> None:
        super().__init__(name)
        bound, ip = str(settings["bind"]).rpartition(":")[0], ray.util.get_node_ip_address()
        node = f"[{ip}]" if ":" in ip else ip
        self._address = f"{node if bound in ('0.0.0.0', '[::]') else bound}:{port}"  # noqa: S104 - not to bind it
        self._settings = {**settings, "bind": f"{bound}:{port}"}
        self._primary = primary
        with warnings.catch_warnings(action="ignore"):
            self._restarted = bool(ray.get_runtime_context().was_current_actor_reconstructed)

    def address(self) -> str:
        """Empty after its end."""
        return self._address

    def run(self) -> int:
        """Exit code."""
        settings = self._settings | ({"resume": True} if self._restarted else {})
        if self._primary is not None:
            settings |= {"primary": ray.get(self._primary.address.remote()), "shard_address": self._address}
            if not settings["primary"]:
                return 0
        code = self._run_child(gemps("serve", *to_arguments(settings)), {}, (0,) if self._restarted else (0, USAGE))
        self._address = ""
        return code


class Worker(Program):
    """Worker."""

    def run(self, command: Sequence[str], environment: Mapping[str, str], server: Any) -> int:
        """Exit code."""
        address = server if isinstance(server, str) else ray.get(server.address.remote())
        if not address:
            return 0
        try:
            found = gemps(*command[1:]) if command[0] == "gemps" else resolved(command, "it is not on this node")
        except CommandError as error:
            print(error, flush=True)
            return USAGE
        return self._run_child(found, {**environment, "GEMPS_SERVER": address}, (0, USAGE, FINISHED_BEFORE))


@dataclass(slots=True)
class RayLaunch:
    """`server`: an address, or the settings of each shard."""

    server: str | Sequence[Mapping[str, Any]]
    workers: int
    command: Sequence[str]
    gpus_per_worker: float
    max_restarts: int
    _interrupts: Interrupts = field(default_factory=Interrupts, init=False)
    _actors: dict[str, Any] = field(default_factory=dict, init=False)
    _calls: dict[Any, str] = field(default_factory=dict, init=False)
    _codes: dict[str, int] = field(default_factory=dict, init=False)

    def run(self) -> int:
        """Exit code. Raises CommandError."""
        try:
            ray.init(address="auto", namespace=NAMESPACE)
        except ConnectionError:
            raise CommandError("no Ray cluster answers: start one (ray start --head), or set RAY_ADDRESS") from None
        try:
            with self._interrupts:
                code = self._supervise(f"gemps-{ray.get_runtime_context().get_job_id()}")
        except ray.exceptions.RayError as error:
            raise CommandError(f"is gemps on all nodes, or in the job's runtime_env? {error}") from None
        finally:
            ray.shutdown()
        return code if self._interrupts.first is None else 128 + self._interrupts.first

    def _supervise(self, prefix: str) -> int:
        servers = set(self._servers(prefix))
        workers = {f"{prefix}-worker-{index}" for index in range(self.workers)}
        group = self._reserve(prefix, len(servers))
        if not self._interrupts.count:
            self._start(prefix, group)
        while not self._interrupts.count and self._left(workers) and self._left(servers) == servers:
            self._collect()
        failed = bool(self._failed(servers)) or self._failed(workers) == workers
        if not (self._interrupts.count or failed):
            self._await(servers | workers, LEAVE_SECONDS if self._left(workers) else STOP_SECONDS)
        # The servers decide how the launch ended; only without servers of its own the workers do.
        counts = servers or workers
        finished = not self._left(counts)
        self._stop(workers)
        self._stop(servers)
        if failed:
            time.sleep(LOG_SECONDS)
        return 0 if finished and not self._failed(counts) else FAILED

    def _reserve(self, prefix: str, servers: int) -> PlacementGroup:
        """Wait for resources for all actors; an interrupt ends the wait."""
        worker = {"CPU": 1.0} | ({"GPU": self.gpus_per_worker} if self.gpus_per_worker else {})
        bundles = [{"CPU": 1.0}] * servers + [worker] * self.workers
        group = placement_group(bundles, "SPREAD" if servers > 1 else "PACK", prefix)
        if not group.wait(PLACE_SECONDS):
            cpus, gpus = group.bundle_count, self.workers * self.gpus_per_worker
            print(f"waiting for {cpus} CPUs and {gpus:g} GPUs: ray status shows what is free", flush=True)
        while not self._interrupts.count and not group.wait(POLL):
            pass
        return group

    def _failed(self, names: set[str]) -> set[str]:
        """Those that ended with an exit code other than 0."""
        return {name for name in names if self._codes.get(name)}

    def _stop(self, names: set[str]) -> None:
        """End what is left of these actors' programs, and wait for them."""
        for name in self._left(names):
            self._actors[name].stop.remote()
        self._await(names, STOP_SECONDS)

    def _start(self, prefix: str, group: PlacementGroup) -> None:
        places = [PlacementGroupSchedulingStrategy(group, one) for one in range(group.bundle_count)]
        first: Any = self.server if isinstance(self.server, str) else None  # an address, or an actor that has it
        for name, settings in self._servers(prefix).items():
            place = places.pop(0)
            port = int(str(settings["bind"]).rpartition(":")[2])
            port = port or ray.get(ray.remote(_free_port).options(scheduling_strategy=place).remote())
            server = self._actor(Server, name, place, settings, port, first)
            if first is None:
                first = server
                print(f"server {ray.get(server.address.remote())}", flush=True)
            self._calls[server.run.remote()] = name
        for index, place in enumerate(places):
            name, count = f"{prefix}-worker-{index}", str(self.workers)
            worker = self._actor(Worker, name, place, gpus=self.gpus_per_worker)
            variables = {"GEMPS_WORKER_NAME": name, "GEMPS_WORKER_INDEX": str(index), "GEMPS_WORKERS": count}
            if not isinstance(self.server, str):
                variables["GEMPS_RUN"] = str(self.server[0]["run"])
            self._calls[worker.run.remote(self.command, variables_for_workers() | variables, first)] = name

    def _servers(self, prefix: str) -> dict[str, Mapping[str, Any]]:
        to_start = () if isinstance(self.server, str) else self.server
        return {f"{prefix}-shard-{index}" if index else f"{prefix}-server": one for index, one in enumerate(to_start)}

    def _actor(self, kind: type[Program], name: str, place: object, *arguments: object, gpus: float = 0.0) -> Any:
        more = {"max_restarts": self.max_restarts, "max_task_retries": -1, "max_concurrency": 3}  # run, stop, address
        options = ray.remote(kind).options(name=name, scheduling_strategy=place, num_cpus=1, num_gpus=gpus, **more)
        self._actors[name] = options.remote(name, *arguments)
        return self._actors[name]

    def _left(self, names: set[str]) -> set[str]:
        return names & set(self._calls.values())

    def _await(self, names: set[str], seconds: float) -> None:
        deadline, before = time.monotonic() + seconds, self._interrupts.count
        while self._left(names) and time.monotonic() < deadline and self._interrupts.count == before:
            self._collect()

    def _collect(self) -> None:
        for call in ray.wait(list(self._calls), timeout=POLL)[0]:
            name = self._calls.pop(call)
            try:
                self._codes[name] = ray.get(call)
                why = f"exit code {self._codes[name]}"
            except ray.exceptions.RayError as error:  # or ray.kill
                self._codes[name], why = FAILED, str(error).strip().splitlines()[-1].partition(". ")[0]
            if self._codes[name]:
                print(f"{name} is gone: {why}", flush=True)


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
