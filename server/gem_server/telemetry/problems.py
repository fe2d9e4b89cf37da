"""Finds what is wrong with a run now. Status, dashboard, metrics, log and `gemps status --check` all show this list.

Each rule in RULES is a function from `Facts`, plain values of the server's state at one moment, to the findings that
hold at that moment. `Problems` remembers only since when each (kind, subject) has been found without interruption,
and makes a problem of a finding that has lasted for as long as it has to. So a problem begins and ends with its cause,
and no part of the server has to report or to take back anything.

For a new kind, add what it needs to `Facts` (gem_server/problem_watch.py fills them), write a rule, add it to RULES and
KINDS, and describe it in docs/watching.md. A rule about single workers goes over `Facts.workers`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

from gem_server.errors import Reason
from gem_server.telemetry.condition import SILENT_SECONDS
from gem_server.telemetry.conduct import Habit
from gem_server.telemetry.first_batches import FIX as SAME_BATCHES_FIX
from gem_server.telemetry.first_batches import TEXT as SAME_BATCHES
from gem_server.telemetry.refusals import Refused

# Of problems, as docs/watching.md explains them.
KINDS = (
    "first-checkpoint",
    "checkpoint-failed",
    "checkpoint-old",
    "disk-space",
    "log-room",
    "certificate",
    "reload-failed",
    "silent-workers",
    "gone-workers",
    "quarantined",
    "same-deltas",
    "losses-not-finite",
    "no-commits",
    "refusals",
    "memory",
    "missing-workers",
    "same-batches",
)
# Problems in the list, and names of workers in one of them.
MOST_PROBLEMS = 32
MOST_NAMES = 16
# Characters of an error or a refusal that a problem quotes.
MOST_QUOTED = 300
# Between two lines of the log about one kind.
LOG_SECONDS = 10.0

FIRST_CHECKPOINT_SECONDS = 60.0
# The checkpoint interval may be shorter than a checkpoint takes to write.
OLD_INTERVALS, OLD_SECONDS = 3.0, 30.0
SMALLEST_CHECKPOINT_BYTES = 1 << 20
# Workers whose commits were refused for want of room repeat them every 2 s, jittered.
LOG_ROOM_SECONDS = 10.0
# Within this time a checkpoint should have made room, also that of a large model.
LOG_STANDS_SECONDS = 30.0
DAY_SECONDS = 86_400.0
EXPIRES_SOON_DAYS, EXPIRES_VERY_SOON_DAYS = 30, 7
# A worker's library sends a heartbeat after 30 s, however long its step is.
LONGEST_SILENCE_SECONDS = 45.0
SILENT_GAPS = 3.0
GONE_SECONDS = 3600.0
# The first commit may have to wait for data sets and compilers.
FIRST_COMMIT_SECONDS = 600.0
NO_COMMIT_SECONDS, NO_COMMIT_GAPS = 60.0, 20.0
FEW_REFUSALS = 3
FULL_MEMORY, NEARLY_FULL_MEMORY = 0.95, 0.85
MISSING_SECONDS = 120.0

# Refusals that say nothing about the health of a run: sessions and versions end with restarts, runs finish, and a crowd
# waits. Other kinds of problems report STORAGE_FULL.
NORMAL_REASONS = frozenset(
    reason.name
    for reason in (
        Reason.UNKNOWN_SESSION,
        Reason.EXPIRED_SESSION,
        Reason.UNKNOWN_INCARNATION,
        Reason.STALE_BASE,
        Reason.RUN_FINISHED,
        Reason.NOT_INITIALIZED,
        Reason.WAITING_ROOM,
        Reason.STARTING,
        Reason.DRAINING,
        Reason.NO_SHARED_MEMORY,
        Reason.NEWER_CALL,
        Reason.STORAGE_FULL,
    )
)

logger = logging.getLogger(__name__)


class Severity(IntEnum):
    """WARNING: somebody should act before long. CRITICAL: the run stands still, or the next mishap costs it."""

    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule sees at one moment.

    Attributes:
        kind: one of KINDS, a word for programs.
        severity: how bad it is.
        text: what has happened.
        fix: what to do about it.
        workers: names of the workers that it is about.
        subject: what distinguishes findings of one kind, such as a file. Each subject has its own duration.
        after: seconds for which every look has to find it before it is a problem.
    """

    kind: str
    severity: Severity
    text: str
    fix: str
    workers: Sequence[str] = ()
    subject: str = ""
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding that has lasted long enough; `since`: when it was found first, in seconds on the server's clock."""

    finding: Finding
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """State of the checkpoints of a server with a data directory.

    Attributes:
        newest: clock of the newest one; None: there is none.
        interval: seconds between two of them; 0: only on request.
        error: why the last attempt failed; empty: it did not.
    """

    newest: int | None
    interval: float
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    """Room in the data directory, in bytes.

    Attributes:
        place: the directory.
        free: free bytes.
        reserved: what the log keeps for the next checkpoint.
        checkpoint: what the next checkpoint takes, with the room that the log needs meanwhile.
    """

    place: str
    free: int
    reserved: int
    checkpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRoomFacts:
    """A log that has refused commits for want of room.

    Attributes:
        refused_ago: seconds since it did so last.
        stands_for: seconds since it did so first after the newest commit; 0: it has taken a commit since.
    """

    refused_ago: float
    stands_for: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """One worker.

    Attributes:
        name: its name.
        trains: whether it has a session, and budget left.
        silent_for: seconds since the server heard of it; 0 while the server has to answer it.
        usual_gap: seconds between two of its commits; None: unknown.
        expired_for: seconds since the last call of a worker whose session has expired; None: it has not, or is back.
        quarantined: whether its deltas count as 0.
        habits: what its last commits have in common.
    """

    name: str
    trains: bool
    silent_for: float
    usual_gap: float | None
    expired_for: float | None
    quarantined: bool = False
    habits: Sequence[Habit] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The server's state at one moment, as far as rules need it. The defaults are those of a server that is well.

    Attributes:
        has_parameters: whether there is a model.
        is_finished: whether the run is finished.
        clock: clock of the newest version.
        checkpoints: None without a data directory.
        disk: None without a data directory, or if it cannot be asked.
        log_room: None: there is no log, or it never lacked room.
        expiries: seconds until certificates expire, by the setting and its file.
        reload_errors: why files could not be read again, by the name of the setting.
        workers: all that are known.
        commits: applied commits of this server process.
        usual_gap: seconds between two commits of all workers; None: unknown.
        refused: refusals of the last minute, by reason.
        memory_bytes: anonymous memory of this process.
        memory_total: what the machine or the control group has.
        waits_for: what an unfinished run without enough workers waits for; empty: nothing.
        same_batches: groups of workers that train on the same batches.
    """

    has_parameters: bool = False
    is_finished: bool = False
    clock: int = 0
    checkpoints: CheckpointFacts | None = None
    disk: DiskFacts | None = None
    log_room: LogRoomFacts | None = None
    expiries: Mapping[str, float] | None = None
    reload_errors: Mapping[str, str] | None = None
    workers: Sequence[WorkerFacts] = ()
    commits: int = 0
    usual_gap: float | None = None
    refused: Mapping[str, Refused] | None = None
    memory_bytes: int = 0
    memory_total: int = 1 << 62
    waits_for: str = ""
    same_batches: Sequence[Sequence[str]] = ()


class Problems:
    """The list of problems. Only the event loop's thread may use it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds that never decrease."""
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}
        self._logged: dict[tuple[str, str], Problem] = {}
        self._logged_at: dict[str, float] = {}
        self.newest: list[Problem] = []

    def look(self, facts: Facts) -> None:
        """Renew `newest`, critical ones first, from the state of now; log what has begun or ended."""
        now = self._clock()
        found = {(one.kind, one.subject): one for one in _bounded(facts)}
        self._since = {key: self._since.get(key, now) for key in found}
        problems = {
            key: Problem(one, self._since[key]) for key, one in found.items() if now - self._since[key] >= one.after
        }
        self.newest = sorted(problems.values(), key=lambda one: (-one.finding.severity, one.since))
        self._log_changes(problems, now)

    def _log_changes(self, problems: Mapping[tuple[str, str], Problem], now: float) -> None:
        for key, ended in list(self._logged.items()):
            if key not in problems and self._may_log(ended.finding.kind, now):
                del self._logged[key]
                seconds = now - ended.since
                about = {"event": "problem-over", "problem": ended.finding.kind, "seconds": round(seconds)}
                logger.info(
                    "%s is over, after %.0f s: %s", ended.finding.kind, seconds, ended.finding.text, extra=about
                )
        for key, problem in problems.items():
            logged, found = self._logged.get(key), problem.finding
            is_new = logged is None or logged.finding.severity != found.severity
            if is_new and self._may_log(found.kind, now):
                self._logged[key] = problem
                severity = found.severity.name.lower()
                about = {"event": "problem", "problem": found.kind, "severity": severity, "workers": [*found.workers]}
                level = logging.ERROR if found.severity is Severity.CRITICAL else logging.WARNING
                names = f"{', '.join(found.workers)}: " if found.workers else ""
                logger.log(level, "%s: %s%s. %s.", found.kind, names, found.text, _sentence(found.fix), extra=about)

    def _may_log(self, kind: str, now: float) -> bool:
        if now - self._logged_at.get(kind, -LOG_SECONDS) < LOG_SECONDS:
            return False
        self._logged_at[kind] = now
        return True


def find(facts: Facts) -> Iterator[Finding]:
    """Yield the findings of all rules."""
    for rule in RULES:
        yield from rule(facts)


def _bounded(facts: Facts) -> list[Finding]:
    return [*islice(find(facts), MOST_PROBLEMS)]


def _first_checkpoint(facts: Facts) -> Iterator[Finding]:
    """Parameters exist, and no checkpoint does yet. Workers wait for it."""
    found = facts.checkpoints
    if found is not None and facts.has_parameters and found.newest is None and not found.error:
        yield Finding(
            kind="first-checkpoint",
            severity=Severity.WARNING,
            text="the first parameters are not in a checkpoint yet, and workers wait until they are",
            fix="look whether the disk of --data-dir is slow or hangs",
            after=FIRST_CHECKPOINT_SECONDS,
        )


def _checkpoint_failed(facts: Facts) -> Iterator[Finding]:
    """The last attempt to write a checkpoint failed."""
    found = facts.checkpoints
    if found is None or not found.error:
        return
    error = _quoted(found.error)
    if found.newest is None:
        yield Finding(
            kind="checkpoint-failed",
            severity=Severity.CRITICAL,
            text=f"the first parameters could not be stored ({error}), so no worker trains; it is tried again",
            fix="free some room on the disk of --data-dir, or start the server with another one",
        )
    else:
        yield Finding(
            kind="checkpoint-failed",
            severity=Severity.WARNING,
            text=f"no checkpoint could be written ({error}); it is tried again, and clock {found.newest} is kept",
            fix="free some room on the disk of --data-dir",
        )


def _checkpoint_old(facts: Facts) -> Iterator[Finding]:
    """No checkpoint has been written for long, although commits were applied."""
    found = facts.checkpoints
    if found is not None and found.interval and found.newest is not None and facts.clock > found.newest:
        yield Finding(
            kind="checkpoint-old",
            severity=Severity.WARNING,
            text=f"no checkpoint has been written for more than {OLD_INTERVALS:g} intervals; the newest is of clock "
            f"{found.newest}",
            fix="look at the server's log and the disk of --data-dir; if a checkpoint takes long to write, raise "
            "--checkpoint-interval",
            subject=str(found.newest),
            after=max(OLD_SECONDS, OLD_INTERVALS * found.interval),
        )


def _disk_space(facts: Facts) -> Iterator[Finding]:
    """The disk has room for few checkpoints, or for none."""
    disk = facts.disk
    if disk is None:
        return
    wanted = max(disk.checkpoint, SMALLEST_CHECKPOINT_BYTES)
    if disk.free >= 2 * wanted:
        return
    has_one = disk.free + disk.reserved >= wanted
    yield Finding(
        kind="disk-space",
        severity=Severity.WARNING if has_one else Severity.CRITICAL,
        text=f"the disk of {disk.place} has {_mebibytes(disk.free)} free, and the next checkpoint may take "
        f"{_mebibytes(wanted)}",
        fix="free some room, or move the data directory to a larger disk (stop the server, copy it, and start with "
        "--resume)",
    )


def _log_room(facts: Facts) -> Iterator[Finding]:
    """The log refuses commits for want of room."""
    room = facts.log_room
    if room is None or room.refused_ago > LOG_ROOM_SECONDS:
        return
    stands = room.stands_for >= LOG_STANDS_SECONDS
    if stands:
        text = "the disk is full, so nothing can be committed; pulls still work, and workers try again"
    else:
        text = "the disk is nearly full, so commits wait until a checkpoint makes room, and the run is slower"
    yield Finding(
        kind="log-room",
        severity=Severity.CRITICAL if stands else Severity.WARNING,
        text=text,
        fix="free some room on the disk of --data-dir (docs/reliability.md says how much the log needs)",
    )


def _expiring_certificates(facts: Facts) -> Iterator[Finding]:
    """A certificate of the server expires soon, or has expired."""
    for name, seconds in (facts.expiries or {}).items():
        days = seconds / DAY_SECONDS
        if days >= EXPIRES_SOON_DAYS:
            continue
        when = "has expired" if seconds <= 0 else f"expires in {days:.0f} days" if days >= 1 else "expires within a day"
        yield Finding(
            kind="certificate",
            severity=Severity.WARNING if days >= EXPIRES_VERY_SOON_DAYS else Severity.CRITICAL,
            text=f"the certificate in {name} {when}",
            fix="replace the file by a renewed one: the server reads it again without a restart",
            subject=name,
        )


def _failed_reloads(facts: Facts) -> Iterator[Finding]:
    """Certificates or tokens have changed, and cannot be used."""
    for name, error in (facts.reload_errors or {}).items():
        yield Finding(
            kind="reload-failed",
            severity=Severity.WARNING,
            text=f"{name} could not be read again, so what was read before stays in force: {_quoted(error)}",
            fix="repair the file; the server reads it again by itself",
            subject=name,
        )


def _silent_workers(facts: Facts) -> Iterator[Finding]:
    """Nothing is heard of workers for longer than their steps take."""
    silent = [one.name for one in facts.workers if one.trains and one.silent_for > _longest_silence(one)]
    if silent:
        yield Finding(
            kind="silent-workers",
            severity=Severity.WARNING,
            text=f"nothing is heard of {_workers(silent)}: a very long step, a process that hangs or was stopped, or "
            "a broken connection",
            fix="look at their processes and the network; if they do not come back, their sessions end after "
            "--session-timeout",
            workers=silent[:MOST_NAMES],
        )


def _longest_silence(worker: WorkerFacts) -> float:
    if worker.usual_gap is None:
        return LONGEST_SILENCE_SECONDS
    return min(LONGEST_SILENCE_SECONDS, max(SILENT_SECONDS, SILENT_GAPS * worker.usual_gap))


def _gone_workers(facts: Facts) -> Iterator[Finding]:
    """Sessions have expired, and their workers are not back."""
    if facts.is_finished:
        return
    gone = [one.name for one in facts.workers if one.expired_for is not None and one.expired_for <= GONE_SECONDS]
    if gone:
        yield Finding(
            kind="gone-workers",
            severity=Severity.WARNING,
            text=f"the sessions of {_workers(gone)} expired without a Leave, and these workers have not come back",
            fix="look why they ended, and start them again; if they are gone for good, this ends an hour after their "
            "last call",
            workers=gone[:MOST_NAMES],
        )


def _quarantined_workers(facts: Facts) -> Iterator[Finding]:
    """Deltas of workers were much larger than those of others, and are not applied any more."""
    quarantined = [one.name for one in facts.workers if one.quarantined]
    if quarantined:
        yield Finding(
            kind="quarantined",
            severity=Severity.WARNING,
            text="their deltas were much larger than the others' again and again, and count as 0 now",
            fix="repair these workers, and end that by gemps readmit WORKER",
            workers=quarantined[:MOST_NAMES],
        )


def _habits(facts: Facts) -> Iterator[Finding]:
    """Report workers whose commits add nothing."""
    for habit in Habit:
        names = [one.name for one in facts.workers if habit in one.habits]
        if names:
            yield Finding(
                kind=habit.kind,
                severity=Severity.WARNING,
                text=habit.text,
                fix=habit.fix,
                workers=names[:MOST_NAMES],
            )


def _no_commits(facts: Facts) -> Iterator[Finding]:
    """Report a run whose workers train while no commit is applied."""
    training = [one.name for one in facts.workers if one.trains]
    if not training or facts.is_finished or facts.waits_for:
        return
    wait = FIRST_COMMIT_SECONDS
    if facts.commits and facts.usual_gap is not None:
        wait = max(NO_COMMIT_SECONDS, NO_COMMIT_GAPS * facts.usual_gap)
    yield Finding(
        kind="no-commits",
        severity=Severity.CRITICAL,
        text=f"no commit has been applied for more than {wait:.0f} s, although {_workers(training)} should train",
        fix="look at the workers' processes and logs, and at gemps status: which are silent, and whether commits wait "
        "for a turn, a buffer or the disk",
        subject=str(facts.commits),
        after=wait,
    )


def _refusals(facts: Facts) -> Iterator[Finding]:
    """Report refusals whose reason remains until somebody acts."""
    for reason, seen in (facts.refused or {}).items():
        if reason not in NORMAL_REASONS and seen.count > FEW_REFUSALS:
            yield Finding(
                kind="refusals",
                severity=Severity.WARNING,
                text=f"{seen.count} calls were refused within a minute with {reason}; the last because: "
                f"{_quoted(seen.message)}",
                fix="the reason says what to do; the server's log names the callers",
                subject=reason,
            )


def _memory(facts: Facts) -> Iterator[Finding]:
    """The process has nearly all memory that there is."""
    share = facts.memory_bytes / facts.memory_total
    if share >= NEARLY_FULL_MEMORY:
        yield Finding(
            kind="memory",
            severity=Severity.CRITICAL if share >= FULL_MEMORY else Severity.WARNING,
            text=f"the server has {_mebibytes(facts.memory_bytes)} of the {_mebibytes(facts.memory_total)} that this "
            "machine or container has; beyond that the system kills it",
            fix="give it more memory, or lower --memory-limit and start fewer workers",
        )


def _missing_workers(facts: Facts) -> Iterator[Finding]:
    """Report a run that waits for workers."""
    if facts.waits_for:
        yield Finding(
            kind="missing-workers",
            severity=Severity.WARNING,
            text=facts.waits_for,
            fix="start them, look at the logs of those that should be there, or stop the server",
            after=MISSING_SECONDS,
        )


def _same_batches(facts: Facts) -> Iterator[Finding]:
    """Report workers that train on the same batches."""
    for names in facts.same_batches:
        yield Finding(
            kind="same-batches",
            severity=Severity.WARNING,
            text=SAME_BATCHES,
            fix=SAME_BATCHES_FIX,
            workers=names[:MOST_NAMES],
            subject=names[0],
        )


RULES: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    _first_checkpoint,
    _checkpoint_failed,
    _checkpoint_old,
    _disk_space,
    _log_room,
    _expiring_certificates,
    _failed_reloads,
    _silent_workers,
    _gone_workers,
    _quarantined_workers,
    _habits,
    _no_commits,
    _refusals,
    _memory,
    _missing_workers,
    _same_batches,
)


def _workers(names: Sequence[str]) -> str:
    return f"{len(names)} worker{'s' if len(names) != 1 else ''}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


def _quoted(text: str) -> str:
    """Return a text as one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_QUOTED else f"{line[: MOST_QUOTED - 3]}..."
