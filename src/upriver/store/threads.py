"""The threads of a bucket: one that groups submitted writes, and those that act now and then.

Neither knows what it is given to do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from ..errors import StoreError
from .changes import Change, Outcome

__all__ = ["GroupWriter", "Ticker"]

logger = logging.getLogger("upriver.store")

_Submission = tuple[Sequence[Change], "Future[list[Outcome]]"]


class GroupWriter:
    """A thread that commits what was submitted while the group before was written, as one group.

    The more there is to do, the larger the groups become. Preparing the next group during a
    write would gain nothing: rocksdict holds the interpreter while it writes.
    """

    def __init__(
        self, commit: Callable[[Sequence[Change]], list[Outcome]], *, name: str, max_changes: int
    ) -> None:
        self._commit = commit
        self._max_changes = max_changes
        self._submitted: SimpleQueue[_Submission | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, changes: Sequence[Change]) -> Future[list[Outcome]]:
        """Queues changes; the future tells when they are committed, one outcome for each."""
        future: Future[list[Outcome]] = Future()
        self._submitted.put((changes, future))
        return future

    def close(self) -> None:
        """Commits what is queued and ends the thread."""
        self._submitted.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._submitted.get()) is not None:
            taken = self._take(first)
            try:
                outcomes = self._commit([change for submitted, _ in taken for change in submitted])
            except BaseException as error:
                if not isinstance(error, StoreError):
                    logger.error("a group failed", exc_info=error)
                for _, future in taken:
                    future.set_exception(error)
                continue
            at = 0
            for submitted, future in taken:
                future.set_result(outcomes[at : at + len(submitted)])
                at += len(submitted)

    def _take(self, first: _Submission) -> list[_Submission]:
        """What makes up the next group; cancelled submissions are left out."""
        taken = [first]
        size = len(first[0])
        while size < self._max_changes:
            try:
                more = self._submitted.get_nowait()
            except Empty:
                break
            if more is None:
                self._submitted.put(None)  # the end comes after this group
                break
            taken.append(more)
            size += len(more[0])
        return [one for one in taken if one[1].set_running_or_notify_cancel()]


class Ticker:
    """Calls something every so many seconds until it is closed."""

    def __init__(self, action: Callable[[], object], *, name: str, interval: float) -> None:
        self._action = action
        self._interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._action()
            except StoreError as error:
                logger.error("%s gave up: %s", self._thread.name, error)
                return
            except Exception:
                logger.exception("%s failed and goes on", self._thread.name)
