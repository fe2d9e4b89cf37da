"""Apache Spark."""

import contextlib
import functools
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from gem_cli.errors import USAGE, CommandError
from gem_cli.programs import resolved
from gem_cli.training.children import gemps, tethered
from gem_worker.client.channel import check_address
from gem_worker.client.settings import variables_for_workers
from gem_worker.exit_status import FINISHED_BEFORE

from gem_core.extras import explain_missing
from gem_launch.server_process import RunningServer, ServerProcessError, checked, require_either, serve

try:
    from py4j.protocol import Py4JJavaError
    from pyspark import RDD, SparkConf, SparkContext, TaskContext
    from pyspark.sql import DataFrame
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(explain_missing("pyspark", "spark", "gemps.spark"), name=error.name) from None

POLL = 0.2  # seconds
SLOTS_SECONDS = 60.0
# Spark's defaults; duplicates supersede, reused processes keep variables.
_SWITCHES = {"spark.speculation": "false", "spark.python.worker.reuse": "true"}

_log = logging.getLogger(__name__)


def train(
    data: RDD[Any] | DataFrame,
    function: Callable[[list[Any]], Any],
    *,
    server: str | None = None,
    shards: int = 1,
    **settings: Any,
) -> list[Any]:
    """Run `function(rows)` in a worker per partition; return results by partition.

    `server`: address; else the driver runs `shards` with `settings`, as `gemps.launch`. Raises TypeError, ValueError,
    ServerProcessError.
    """
    if not isinstance(data, RDD | DataFrame):
        raise TypeError(f"the data is {type(data).__name__}: give an RDD or a DataFrame")
    require_either(server, settings, shards)
    return _run_workers(data if isinstance(data, RDD) else data.rdd, function, server, shards, settings)


def launch_workers(
    command: Sequence[str],
    workers: int,
    spark: Mapping[str, str],
    server: str | None,
    shards: int,
    settings: Mapping[str, Any],
) -> None:
    """Run a command or `gemps work`. Raises ValueError, RuntimeError."""
    os.environ.setdefault("PYSPARK_PYTHON", gemps()[0])
    conf = SparkConf().setAppName("gemps").set("spark.python.worker.reuse", "false")
    try:
        with SparkContext(conf=conf.setAll(list(spark.items()))) as context:
            data, run = context.parallelize(range(workers), workers), functools.partial(_run_command, command)
            codes = _run_workers(data, run, server, shards, settings)
    except Py4JJavaError as error:
        said = str(error.java_exception.getMessage())
        raise RuntimeError(said.partition("\n\nDriver stacktrace")[0]) from None
    if failed := [index for index, code in enumerate(codes) if code]:
        found = ", ".join(sorted({str(code) for code in codes if code}))
        raise RuntimeError(f"workers {failed} ended with exit code {found}: their executor's stderr says why")


def _run_workers(
    rdd: RDD[Any], function: Callable[[list[Any]], Any], server: str | None, shards: int, settings: Mapping[str, Any]
) -> list[Any]:
    context, partitions = rdd.context, rdd.getNumPartitions()
    _check_configuration(context, partitions)
    tag = f"gemps-{uuid.uuid4()}"
    cancel = functools.partial(context.cancelJobsWithTag, tag)
    with contextlib.ExitStack() as stack:
        of_run = {}
        if server is None:
            own = stack.enter_context(_DriverServer(context, partitions, shards, settings, cancel))
            server, of_run = own.address, {"GEMPS_RUN": own.run}
        stack.callback(context.removeJobTag, tag)
        stack.callback(cancel)
        context.addJobTag(tag)
        environment = variables_for_workers() | {
            "GEMPS_SERVER": check_address(server),
            "GEMPS_WORKERS": str(partitions),
            **of_run,
        }
        task = functools.partial(_work, function, environment, context.applicationId)
        results: list[Any] = rdd.mapPartitionsWithIndex(task).collect()
        return results


def _work(
    function: Callable[[list[Any]], Any], environment: Mapping[str, str], application: str, index: int, rows: Any
) -> list[Any]:
    # Ended executors send SIGHUP.
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    # Attempts share it, calls do not.
    name = f"{application}-{TaskContext.get().stageId()}-{index}"
    os.environ |= {**environment, "GEMPS_WORKER_NAME": name, "GEMPS_WORKER_INDEX": str(index)}
    return [function(list(rows))]


def _run_command(command: Sequence[str], rows: list[Any]) -> int:
    """An exit code that is final: 0, USAGE or FINISHED_BEFORE. Raises RuntimeError."""
    try:
        command = resolved(command, "install it on the nodes") if command else gemps("work")
    except CommandError as error:
        print(error, file=sys.stderr)
        return USAGE
    tied = tethered(command, signal.SIGTERM)
    code = subprocess.run(tied, process_group=0, check=False).returncode  # noqa: S603 - the user's own
    if code not in (0, USAGE, FINISHED_BEFORE):
        raise RuntimeError(f"{shlex.join(command)} ended with exit code {code}")
    return code


class _DriverServer:
    def __init__(
        self, context: SparkContext, workers: int, shards: int, settings: Mapping[str, Any], cancel: Callable[[], None]
    ) -> None:
        conf, given = context.getConf(), checked(settings, shards).model_fields_set
        host = conf.get("spark.driver.host")
        own: dict[str, Any] = {"min_workers": workers, "bind": f"{conf.get('spark.driver.bindAddress', host)}:0"}
        own["run"] = context.applicationId
        settings = {name: value for name, value in own.items() if name not in given} | dict(settings)
        self._shards = shards
        self._server = serve(shards=shards, **settings)
        self.run = self._server.settings.run
        bound, _, port = self._server.address.rpartition(":")
        is_local = "bind" in given and bound not in ("0.0.0.0", "[::]")  # noqa: S104
        self.address = self._server.address if is_local else f"{host}:{port}"
        self._settings = {**settings, "bind": f"{bound}:{port}", "resume": True}
        self._restarts = int(conf.get("spark.task.maxFailures", "4")) - 1
        self._failure: ServerProcessError | None = None
        self._cancel = cancel
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="server", daemon=True)

    def __enter__(self) -> Self:
        _log.info("serving on %s", self.address)
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._is_over.set()
        self._thread.join()
        self._server.__exit__(*error)
        if self._failure is not None:
            raise self._failure from None

    def _keep(self) -> None:
        while not self._is_over.wait(POLL):
            try:
                if self._failure is None:
                    self._restart_if_dead()
            except ServerProcessError as error:
                self._failure = error
            if self._failure is not None:
                self._cancel()  # may precede the job

    def _restart_if_dead(self) -> None:
        server = self._server
        if server.exit_code is None or (server.exit_code == 0 and server.settings.exit_when_finished):
            return
        end = server.explain_end()
        if server.exit_code == 0 or server.data_dir is None or not self._restarts:
            raise ServerProcessError(end if server.data_dir else f"{end}\ndata_dir= lets it be restarted")
        self._restarts -= 1
        _log.warning("the server died, and is restarted; its log is %s", server.log)
        with contextlib.suppress(ServerProcessError):
            server.close()
        self._server = RunningServer(checked(self._settings, self._shards), self._shards)


def _check_configuration(context: SparkContext, partitions: int) -> None:
    conf = context.getConf()
    for name, default in _SWITCHES.items():
        if conf.get(name, default).lower() != "false":
            raise ValueError(f"{name} is true, which workers cannot use: set --conf {name}=false")
    if not partitions:
        raise ValueError("the data has no partition, thus no worker: repartition(N)")
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        return
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    deadline = time.monotonic() + SLOTS_SECONDS
    while (slots := scala.maxNumConcurrentTasks(profile)) < partitions:
        if time.monotonic() > deadline:
            raise ValueError(
                f"{partitions} workers, one per partition, must run at once, and {slots} task slots are free: get "
                "more, see what other applications hold (spark.cores.max limits them), or take fewer workers"
            )
        time.sleep(POLL)
