"""The threads of a bucket: one commits groups of writes, others run periodic tasks.

They only call the functions that they are given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from ...errors import StoreError
from .change_requests import ChangeRequest, Outcome

logger = logging.getLogger("upriver.store")

_Submission = tuple[Sequence[ChangeRequest], "Future[list[Outcome]]"]


class GroupWriter:
    """A writer thread that commits all changes submitted during the last commit as one group.

    The higher the load, the larger the groups. Preparing the next group during a write would not
    be faster: rocksdict holds the interpreter lock while it writes.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[ChangeRequest]], list[Outcome]],
        *,
        name: str,
        max_changes: int,
    ) -> None:
        self._commit = commit
        self._max_changes = max_changes
        self._submitted: SimpleQueue[_Submission | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, changes: Sequence[ChangeRequest]) -> Future[list[Outcome]]:
        """Queues changes. When they are committed, the future has one outcome for each."""
        future: Future[list[Outcome]] = Future()
        self._submitted.put((changes, future))
        return future

    def close(self) -> None:
        """Commits the queued changes and ends the thread."""
        self._submitted.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._submitted.get()) is not None:
            self._commit_group(self._take(first))

    def _commit_group(self, taken: list[_Submission]) -> None:
        try:
            outcomes = self._commit([change for submitted, _ in taken for change in submitted])
        except BaseException as error:
            if not isinstance(error, StoreError):
                logger.error("a group failed", exc_info=error)
            for _, future in taken:
                future.set_exception(error)
            return
        at = 0
        for submitted, future in taken:
            future.set_result(outcomes[at : at + len(submitted)])
            at += len(submitted)

    def _take(self, first: _Submission) -> list[_Submission]:
        """Returns the submissions of the next group, without those that were cancelled."""
        taken = [first]
        size = len(first[0])
        while size < self._max_changes:
            try:
                more = self._submitted.get_nowait()
            except Empty:
                break
            if more is None:
                self._submitted.put(None)  # stop after this group
                break
            taken.append(more)
            size += len(more[0])
        return [one for one in taken if one[1].set_running_or_notify_cancel()]


class Ticker:
    """A thread that calls a function at an interval until it is closed."""

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
        said = ""
        while not self._stopped.wait(self._interval):
            try:
                self._action()
                said = ""
            except StoreError as error:
                # The error may pass, for example when the disk has space again. Log it only once.
                if said != type(error).__name__:
                    logger.error("%s failed and goes on: %s", self._thread.name, error)
                said = type(error).__name__
            except Exception:
                logger.exception("%s failed and goes on", self._thread.name)
