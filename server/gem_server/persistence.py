"""Connects the parts of `durability` for a run that has a data directory."""

import asyncio
import base64
import json
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

from gem_core import Layout, UpdateRule
from gem_core.regular_files import read_text
from gem_core.shards import Shard
from gem_server.durability import checkpoint, recovery, run_record
from gem_server.durability.agreement import Agreement
from gem_server.durability.checkpoint import Checkpoint
from gem_server.durability.checkpointer import Checkpointer
from gem_server.durability.files import Files, StorageError
from gem_server.durability.lock import DirectoryLock
from gem_server.durability.log import Log
from gem_server.durability.log_format import NO_LOG
from gem_server.durability.log_journal import LogJournal
from gem_server.durability.probe import probe
from gem_server.errors import StartupError
from gem_server.flow.applier import Applier
from gem_server.flow.journal import Journal, NoJournal
from gem_server.flow.staging_pool import BUFFERS_FOR_THE_SLOW
from gem_server.rule_choice import RuleChoice
from gem_server.settings import ServerSettings
from gem_server.state.central_variable import CentralVariable
from gem_server.state.kept_rule import KeptRule, restore_rule, rule_record
from gem_server.state.ledger import Ledger
from gem_server.state.memory import count_buffers
from gem_server.state.recipe import RunRecipe
from gem_server.state.run import Run
from gem_server.state.workers import Workers
from gem_server.telemetry.telemetry import Telemetry

logger = logging.getLogger(__name__)


class Persistence:
    """The data directory of one run. Only the event loop's thread may use it.

    The methods are called in this order: `attach`, `recover`, `write_whenever_due`, `end_log`, `write_last`, `release`.
    """

    def __init__(
        self,
        settings: ServerSettings,
        files: Files,
        *,
        central: CentralVariable,
        rule: UpdateRule,
        choice: RuleChoice,
        recipe: RunRecipe,
        run: Run,
        workers: Workers,
        ledger: Ledger,
        telemetry: Telemetry,
        agreement: Agreement,
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self._agreement = agreement
        self._settings = settings
        self._files = files
        self._central = central
        self._rule = rule
        self._choice = choice
        self._recipe = recipe
        self._run = run
        self._workers = workers
        self._ledger = ledger
        self._telemetry = telemetry
        self._on_failure = on_failure
        self._lock = DirectoryLock(settings.data_dir) if settings.data_dir is not None else None
        self.log = self._make_log()
        self.journal: Journal = LogJournal(self.log) if self.log is not None else NoJournal()
        self.checkpointer: Checkpointer | None = None

    def attach(self, applier: Applier) -> None:
        """Create the checkpointer, which reads state through `applier`."""
        settings = self._settings
        if settings.data_dir is None:
            return
        self.checkpointer = writer = Checkpointer(
            data_dir=settings.data_dir,
            files=self._files,
            central=self._central,
            rule=self._rule,
            applier=applier,
            describe=self._describe,
            clock=monotonic,
            log=self.log,
            agreement=self._agreement,
            on_failure=self._on_failure,
        )
        if settings.checkpoint_commits:
            applier.on_commit.append(lambda: writer.count_commit(settings.checkpoint_commits))

    async def clocks(self) -> tuple[list[int], str]:
        """Lock the directory. Returns the clocks at which a shard can resume ([0] if there is none), and their run."""
        data_dir = self._settings.data_dir
        if data_dir is None:
            return [0], ""
        self._claim(data_dir)
        if not self._settings.resume:
            return [0], ""
        latest = data_dir / checkpoint.LATEST
        if latest.exists():
            self._check_shard((await asyncio.to_thread(checkpoint.read_state, latest))[0])
        return await asyncio.to_thread(recovery.clocks, data_dir)

    async def recover(self, clock: int | None = None) -> None:
        """Lock the directory. If the settings say so, resume at `clock` or at the newest state. Raises StartupError."""
        data_dir = self._settings.data_dir
        if data_dir is None:
            return
        self._claim(data_dir)
        if not self._settings.resume:
            if self.log is not None:
                self.log.start(0, NO_LOG)
            return
        recovered: recovery.Recovered | None
        if clock:
            recovered = await asyncio.to_thread(recovery.recover_at, data_dir, clock)
        else:
            recovered = await asyncio.to_thread(recovery.recover, data_dir)
        if recovered is not None:
            self._check_shard(recovered.whole.layout)
        if self.log is not None:
            self.log.start(*((recovered.last_number, recovered.last_id) if recovered else (0, NO_LOG)))
        if recovered is None:
            logger.info("nothing to resume in %s: starting anew", data_dir)
            return
        saved = recovered.whole
        if saved.state.get("seed") != self._settings.seed:
            logger.warning("the checkpoint was made with --seed %s", saved.state.get("seed"))
        about = {"event": "resuming", "clock": saved.clock, "replayed": recovered.replayed}
        logger.info("resuming at clock %d, commits from the log: %d", saved.clock, recovered.replayed, extra=about)
        adapter = base64.b64decode(saved.state.get("adapter", ""))
        self._central.bind(saved.layout, saved.parameters, saved.buffers, saved.clock, adapter=adapter)
        self._restore_choice(saved, data_dir)
        self._recipe.begin(self._rule, saved.layout)
        if self._settings.part.is_secondary:
            saved.state["finished_because"] = None  # the primary says so
        try:
            run_record.restore(saved.state, self._run, self._workers, self._ledger)
            self._telemetry.earlier = run_record.saved_totals(saved.state)
            self._restore_rule(saved, data_dir)
        except (KeyError, TypeError, ValueError) as error:
            raise StartupError(f"the checkpoint in {data_dir} lacks what this version needs: {error!r}") from error
        self._run.commits_before = self._run.commits
        if self.checkpointer is None:
            return
        if self.log is not None or recovered.replayed or clock:
            await self._write_recovered(self.checkpointer, data_dir)
        else:
            self.checkpointer.newest = (data_dir / checkpoint.LATEST).resolve()
            self.checkpointer.newest_version = self._central.version
            self.checkpointer.written_at = monotonic()

    async def write_whenever_due(self) -> None:
        """Write checkpoints until cancelled."""
        if self.checkpointer is not None:
            level = self._settings.durability_level
            await self.checkpointer.write_whenever_due(0.0 if level == "none" else self._settings.checkpoint_interval)

    def soon(self) -> None:
        """Request a checkpoint if anything changed."""
        if self.checkpointer is not None and not self._agreement.request_checkpoint():
            self.checkpointer.soon()

    def require_checkpoint(self) -> None:
        """Request a checkpoint even if no commit is new."""
        if self.checkpointer is not None:
            self.checkpointer.require()

    @property
    def wait_durable(self) -> Callable[[], Awaitable[None]] | None:
        """Wait until the current state is durable."""
        return self._wait_durable if self.log is not None else None

    @property
    def first_is_written(self) -> Callable[[], Awaitable[None]] | None:
        """Wait until the first parameters are durable."""
        return None if self.checkpointer is None else self.checkpointer.first_is_written

    async def end_log(self) -> None:
        """Write all applied commits to the log. Idempotent."""
        if self.log is not None:
            await self.log.close()

    async def write_last(self) -> None:
        """Write the final checkpoint, if needed. Raises OSError, StorageError, RefusedError."""
        writer = self.checkpointer
        if writer is None or self._central.layout is None:
            return
        newest = writer.newest if writer.newest_version == self._central.version else None
        if newest is None or not await asyncio.to_thread(self._says_all, newest):
            await writer.write_last()

    def describe_unsaved(self) -> str:
        """Say what is lost after `write_last` has failed."""
        newest = self.checkpointer.newest_version if self.checkpointer is not None else None
        if newest is None:
            return "there is no earlier one, so this run is lost"
        if self.log is not None:
            return "no acknowledged commit is lost, because the log has them: start with --resume"
        count = self._central.clock - newest.clock
        return f"--resume continues from clock {newest.clock}, and the {count} commits after it are lost"

    def release(self) -> None:
        """Unlock the directory. Idempotent."""
        if self._lock is not None:
            self._lock.release()

    def _make_log(self) -> Log | None:
        settings = self._settings
        if settings.data_dir is None or settings.durability_level != "commit":
            return None
        return Log(
            directory=settings.data_dir / recovery.LOG,
            files=self._files,
            staging_buffers=lambda layout: (
                count_buffers(settings.limits.staging_buffers, layout) + BUFFERS_FOR_THE_SLOW
            ),
            rule_vectors=self._rule.kept_vectors,
            agreement=self._agreement,
            on_large=self.soon,
            on_failure=self._on_failure,
        )

    def _claim(self, data_dir: Path) -> None:
        self._lock_data_dir(data_dir)
        if not self._settings.resume and (data_dir / checkpoint.LATEST).exists():
            raise StartupError(
                f"{data_dir} holds a checkpoint of an earlier run: add --resume to continue it, or choose "
                "another --data-dir"
            )

    def _check_shard(self, layout: Layout) -> None:
        held, own = Shard.of(layout), self._settings.part
        if held != own:
            raise StartupError(
                f"{self._settings.data_dir} holds {held.title}, and --shard {own} is {own.title}: start each shard "
                "with its own --data-dir; gemps shards merge and gemps shards split change the number of shards"
            )

    def _lock_data_dir(self, data_dir: Path) -> None:
        try:
            missing = [path for path in (data_dir, *data_dir.parents) if not path.exists()]
            data_dir.mkdir(parents=True, exist_ok=True)
            for path in missing:
                self._files.sync(path.parent)
            for folder in (data_dir / "checkpoints", data_dir / recovery.LOG):
                if os.path.lexists(folder) and not folder.is_dir():
                    raise StartupError(f"{folder} is no folder: move it away, or choose another --data-dir")
            if self._lock is not None:
                self._lock.acquire()
            probe(self._files, data_dir, allocates=self.log is not None)
        except OSError as error:
            raise StartupError(f"--data-dir {data_dir} cannot be made or written: {error.strerror}") from error

    def _describe(self) -> dict[str, Any]:
        totals = self._telemetry.totals
        state = run_record.state_record(self._run, self._workers, self._ledger, self._settings.seed, totals)
        adapter = self._central.adapter
        if (choice := self._choice.record) is not None:
            state["choice"] = choice
        return state | ({"adapter": base64.b64encode(adapter).decode()} if adapter else {})

    def _restore_choice(self, saved: Checkpoint, data_dir: Path) -> None:
        try:
            self._choice.restore(saved.state.get("choice"))
            if (recipe := self._choice.recipe) is not None:
                recipe.check_parameters(len(saved.layout.whole.parameters))
        except (KeyError, TypeError, ValueError) as error:
            raise StartupError(f"the checkpoint in {data_dir} has a recipe that is not legal: {error!r}") from error

    def _restore_rule(self, saved: Checkpoint, data_dir: Path) -> None:
        rule, record = self._rule, saved.state.get("rule") or {}
        if (kind := record.get("precondition", "none")) != "none":  # of development versions before 0.1.0
            raise StartupError(
                f"the run in {data_dir} was trained with --precondition {kind}, which gemps 0.1.0 does not have: load "
                f'its parameters into the script\'s model, gemps.load("{data_dir}").load_into(model), and start a new '
                "run in another --data-dir"
            )
        if restore_rule(rule, KeptRule(record, saved.rule_vectors)):
            return
        if rule.kept_vectors or rule.kept_scalars:
            logger.warning("the checkpoint has nothing that rule %s keeps of a run: its vectors begin at 0", rule.name)

    def _says_all(self, place: Path) -> bool:
        try:
            written = json.loads(read_text(place / checkpoint.STATE_FILE))
        except (OSError, ValueError):
            return False
        state = self._describe() | {"log": None, "rule": rule_record(self._rule)}
        return all(name in written and written[name] == value for name, value in state.items())

    async def _write_recovered(self, checkpointer: Checkpointer, data_dir: Path) -> None:
        try:
            await checkpointer.write_recovered()
        except OSError as error:
            raise StartupError(
                f"there is no room in {data_dir} to begin with ({error.strerror}): free some; nothing is lost"
            ) from error
        except StorageError as error:
            raise StartupError(f"{error}: check the disk") from error

    async def _wait_durable(self) -> None:
        # Clock 1 is the first parameters. No worker gets them before they are durable (`first_is_written`). A
        # server whose disk is full until then still has to answer, because its status reports the problem.
        if self.log is not None and self._central.clock > 1:
            await self.log.until(self._central.clock)
