"""How a pipeline goes: its status now, and a line in a file for every batch.

The file is for `upriver report` and for people; nothing depends on it, and it is kept short.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from .. import telemetry
from .._files import replace_file
from ..files.storage import Storage, StorageFailed

if TYPE_CHECKING:  # its import takes the protocol's, which a report never needs
    from .lag import Lag

_log = logging.getLogger(__name__)

#: In an object store: where the files of runs are, how many stay, and how often one is written.
_RUNS: Final = "_upriver/progress"
_KEPT_RUNS: Final = 20
_WRITTEN_EVERY: Final = 5.0

#: Lines of a file; at twice as many the older half goes.
_KEPT_LINES: Final = 5_000
#: Bytes of such a file that are read at the most.
_MAX_SIZE: Final = 16 * 1024 * 1024
#: Batches over which the rate is taken.
_RECENT: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One batch."""

    #: Seconds since 1970 when it was done.
    time: float
    #: Which run of the pipeline.
    run: str
    batch: int
    rows: int
    bytes: int
    seconds: float
    #: Seconds by step.
    steps: dict[str, float]
    rollbacks: int
    dead_letters: int
    #: Changes that the bucket was ahead right after the commit.
    lag: int | None
    #: Seconds from the newest change of the batch until it was done.
    delay: float | None
    #: The table then showed at least all that the bucket had so many seconds before.
    lag_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """How a pipeline goes. Counts are of this run."""

    #: starting, reading, idle, waiting, done, stopped or failed.
    state: str = "starting"
    #: Since when, in seconds since 1970, and what it waits for or why it failed.
    since: float = field(default_factory=lambda: time.time())
    reason: str = ""
    batches: int = 0
    rows: int = 0
    #: Changes a second in the last batches.
    rate: float = 0.0
    #: Changes and seconds that the table was behind its bucket when that was ``measured``, in
    #: seconds since 1970; None if the nodes could not be asked.
    lag: int | None = None
    lag_seconds: float | None = None
    measured: float | None = None
    last: BatchRecord | None = None
    rollbacks: int = 0
    dead_letters: int = 0
    #: Seqnos done and to do, of a run that catches up: an upper bound of its changes.
    done: int = 0
    total: int | None = None

    @property
    def is_active(self) -> bool:
        return self.state not in ("done", "stopped", "failed")


class ProgressLog(Protocol):
    """Where the batches of one run are recorded."""

    run: str

    def append(self, line: str) -> None: ...

    def close(self) -> None: ...


class LocalProgress:
    """A file that lines are appended to, for all runs."""

    def __init__(self, path: Path, run: str) -> None:
        self.run = run
        self._path = path
        self._lines = 0

    def append(self, line: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._lines += 1
        if self._lines % _KEPT_LINES == 1:
            self._shorten()

    def _shorten(self) -> None:
        with open(self._path, encoding="utf-8") as file:
            lines = deque(file, maxlen=_KEPT_LINES)
        # not durable: it only shows how a pipeline is doing
        replace_file(self._path, "".join(lines).encode(), private=False, durable=False)

    def close(self) -> None:
        pass


class RemoteProgress:
    """In an object store: a file for each run, which is written anew every few seconds."""

    def __init__(self, storage: Storage, run: str) -> None:
        self.run = run
        self._storage = storage
        self._path = f"{_RUNS}/{time.time_ns():020}-{run}.jsonl"
        self._kept: deque[str] = deque(maxlen=_KEPT_LINES)
        self._written = 0.0

    def append(self, line: str) -> None:
        self._kept.append(line)
        if time.monotonic() - self._written >= _WRITTEN_EVERY:
            self.close()

    def close(self) -> None:
        if not self._kept:
            return
        self._written = time.monotonic()
        try:
            self._storage.put(self._path, "".join(f"{one}\n" for one in self._kept).encode())
            old = sorted(file.path for file in self._storage.files(_RUNS))[:-_KEPT_RUNS]
            self._storage.delete(old)
        except StorageFailed as problem:
            _log.warning("the progress was not recorded: %s", problem)


class ProgressBook:
    """Keeps both; any thread may ask."""

    def __init__(self, log: ProgressLog, total: int | None) -> None:
        self.run = log.run
        self._log = log
        self._lock = threading.Lock()
        self._recent: deque[BatchRecord] = deque(maxlen=_RECENT)
        self._status = PipelineStatus(total=total)
        #: Since when no node answers what is asked of the bucket, and why; None while one does.
        self.waits: Callable[[], tuple[float, str] | None] = lambda: None

    def status(self) -> PipelineStatus:
        with self._lock:
            status = self._status
        waits = self.waits() if status.is_active else None
        if waits is not None:
            status = replace(status, state="waiting", since=waits[0], reason=waits[1])
        return status

    def enter(self, state: str, reason: str = "") -> None:
        """Says what the pipeline does now; since now, if it did something else before."""
        with self._lock:
            status = self._status
            since = status.since if state == status.state else time.time()
            self._status = replace(status, state=state, reason=reason, since=since)

    def measured(self, lag: Lag | None) -> None:
        """How far the table is behind its bucket now; None if nobody can be asked."""
        with self._lock:
            self._status = replace(
                self._status,
                lag=lag.changes if lag is not None else None,
                lag_seconds=lag.seconds if lag is not None else None,
                measured=time.time(),
            )

    def close(self, state: str, reason: str = "") -> None:
        """Says how it ended."""
        self._log.close()
        self.enter(state, reason)

    def batch_done(self, *, advance: int, began: float, **facts: Any) -> None:
        """Counts a batch that began at that moment of the monotonic clock."""
        seconds = time.monotonic() - began
        record = BatchRecord(time=time.time(), run=self._log.run, seconds=seconds, **facts)
        with self._lock:
            self._recent.append(record)
            spent = sum(one.seconds for one in self._recent)
            status = self._status
            self._status = replace(
                status,
                batches=status.batches + 1,
                rows=status.rows + record.rows,
                rate=sum(one.rows for one in self._recent) / spent if spent else 0.0,
                lag=record.lag,
                lag_seconds=record.lag_seconds,
                measured=record.time,
                last=record,
                rollbacks=status.rollbacks + record.rollbacks,
                dead_letters=status.dead_letters + record.dead_letters,
                done=status.done + advance,
            )
        self._log.append(json.dumps(asdict(record)))
        telemetry.batch_done(record)


def read_progress(storage: Storage) -> list[BatchRecord]:
    """The batches of the last runs, oldest first; a line that is damaged is left out."""
    if storage.is_local:
        try:
            path = storage.path / "_upriver" / "progress.jsonl"
            with open(path, "rb") as file:
                file.seek(max(0, path.stat().st_size - _MAX_SIZE))
                text = file.read(_MAX_SIZE)
        except (FileNotFoundError, NotADirectoryError):
            return []
    else:
        text = b"".join(storage.read(one.path) for one in storage.files(_RUNS))
    lines = text.decode(errors="replace").splitlines()
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: str) -> BatchRecord | None:
    try:
        record = BatchRecord(**json.loads(line))
        float(record.time + record.rows + record.seconds + record.rollbacks)
    except (ValueError, TypeError):
        return None
    return record
