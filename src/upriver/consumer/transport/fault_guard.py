"""`FaultGuard`: reports exceptions of callbacks and background tasks to an error handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from ...errors import InternalError, UpriverError

_P = ParamSpec("_P")

_log = logging.getLogger(__name__)


class FaultGuard:
    """Runs callbacks and tasks, and passes every exception that they raise to ``fail``.

    Without it asyncio would only log such an exception. An exception that is not an `UpriverError`
    is logged and passed on as `InternalError`.
    """

    def __init__(self, fail: Callable[[UpriverError], None]) -> None:
        self._fail = fail

    def callback(self, act: Callable[_P, None]) -> Callable[_P, None]:
        """Wraps a callback so that it never raises."""

        def guarded(*args: _P.args, **options: _P.kwargs) -> None:
            try:
                act(*args, **options)
            except Exception as fault:
                self._failed(fault)

        return guarded

    def task(
        self, work: Callable[_P, Coroutine[Any, Any, None]], *args: _P.args, **options: _P.kwargs
    ) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work(*args, **options)
            except Exception as fault:
                self._failed(fault)

        return asyncio.create_task(guarded())

    def _failed(self, fault: Exception) -> None:
        if isinstance(fault, UpriverError):
            self._fail(fault)
            return
        _log.error("a fault of Upriver", exc_info=fault)
        self._fail(InternalError(f"a fault of Upriver, please report it: {fault!r}"))
