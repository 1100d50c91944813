"""What the blocking and the asyncio client have in common: what is read, and where the reader is.

They differ in how they wait, and in nothing else. This module starts an engine on the event loop it
is called on; whose loop that is, and how deliveries get from there to the application, it does
not know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .access import Access
from .bearings import Bearings
from .checkpoint import Checkpoint, CheckpointStore
from .collections import Collections
from .delivery import Delivery
from .desk import Desk, Rollback
from .engine import Engine
from .settings import ConsumerSettings, End, Start, settings_for
from .source import Source

__all__ = ["Reading"]


class Reading(ABC):
    """One reading of a bucket, from its options to its end."""

    #: In which block a client of this kind is to be used.
    _block = "a with"

    def __init__(
        self,
        source: str | Source,
        *,
        access: Access | None = None,
        checkpoint: CheckpointStore | None = None,
        on_rollback: Callable[[Rollback], None] | None = None,
        settings: ConsumerSettings | None = None,
        **options: Any,
    ) -> None:
        self._source = Source.parse(source) if isinstance(source, str) else source
        self._access = access or Access()
        self._settings = settings_for(settings, options, checkpoint)
        self._store = checkpoint
        self._on_rollback = on_rollback
        self._running: tuple[Engine, Desk] | None = None
        self._finished = False
        self._closed = False
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Makes what a client of this kind waits with."""

    async def _begin(self, deliver: Callable[[Delivery], None]) -> None:
        """Finds the bucket and begins to read."""
        engine = Engine(self._source, self._access, self._settings, deliver)
        self._running = engine, self._new_desk(await engine.start())

    def _new_desk(self, bearings: Bearings) -> Desk:
        return Desk(
            self._source,
            self._settings,
            bearings,
            on_rollback=self._on_rollback,
            checkpoint=self._store,
        )

    async def _begin_again(self, start: Start, end: End) -> None:
        """Begins to read other ranges, over the connections that are there."""
        if not self._finished or self._settings.persisted_everywhere is not None:
            raise RuntimeError("only what was read to its end can begin again")
        self._settings = replace(self._settings, start=start, end=end)
        engine = self._engine
        self._running = engine, self._new_desk(await engine.start_again(self._settings))
        self._finished = False

    def _in_use(self) -> tuple[Engine, Desk]:
        if self._running is None:
            raise RuntimeError(f"the consumer is not running: use it in {self._block} block")
        return self._running

    @property
    def _engine(self) -> Engine:
        return self._in_use()[0]

    @property
    def _desk(self) -> Desk:
        return self._in_use()[1]

    # ---- where it is ---------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether everything up to the end was handed out."""
        return self._finished

    def position(self) -> Checkpoint:
        """Where the application is: after everything that was handed to it."""
        return self._desk.checkpoint()

    def save(self) -> None:
        """Saves that to the checkpoint store."""
        self._desk.save()

    @property
    def collections(self) -> Collections:
        """What the collections are called."""
        return self._engine.bearings.collections
