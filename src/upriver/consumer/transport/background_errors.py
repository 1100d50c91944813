"""Errors of background work: they end reading, instead of being only logged by asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from ...errors import InternalError, UpriverError

_P = ParamSpec("_P")

_log = logging.getLogger(__name__)


def as_upriver_error(fault: Exception) -> UpriverError:
    """Returns an `UpriverError` unchanged. Logs any other exception; it is an `InternalError`."""
    if isinstance(fault, UpriverError):
        return fault
    _log.error("a fault of Upriver", exc_info=fault)
    return InternalError(f"a fault of Upriver, please report it: {fault!r}")


class FaultGuard:
    """Runs tasks, and passes every exception that they raise to ``fail``."""

    def __init__(self, fail: Callable[[UpriverError], None]) -> None:
        self._fail = fail

    def task(
        self, work: Callable[_P, Coroutine[Any, Any, None]], *args: _P.args, **options: _P.kwargs
    ) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work(*args, **options)
            except Exception as fault:
                self._fail(as_upriver_error(fault))

        return asyncio.create_task(guarded())
