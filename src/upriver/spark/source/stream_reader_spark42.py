"""The streaming read of Spark 4.2 and later, which gives a batch its start and its limit.

Spark also says when all that is there now is to be read in as many batches as it takes
(Trigger.AvailableNow), and asks for the lag.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ...batches.admission import Limits
from ...batches.offsets import Offset
from ...batches.options import ReadOptions
from .stream_reader import DcpStreamReader


class Spark42StreamReader(DcpStreamReader, SupportsTriggerAvailableNow):
    """Its first offset is decided by the first plan, whose empty batch puts it into the log."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._target: dict[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_target": None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        previous = self._offset(start)
        if previous is None:
            return self._told(self._at_work.first_offset())
        patience = 0.0 if self._target is not None else self._options.long_poll
        return self._next(start, previous, self._limits(limit), patience)

    def _limits(self, limit: ReadLimit) -> Limits:
        everything = isinstance(limit, ReadAllAvailable)
        return Limits(
            rows=None if everything else self._options.max_offsets_per_trigger,
            bytes=None if everything else self._options.max_bytes_per_trigger,
            target=self._target,
        )

    def _before_first(self, end: Offset) -> Offset:
        return end  # the first batch is empty

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._at_work.target()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """How far the bucket is, and how far behind the last plan is, for the query's progress."""
        return self._at_work.standing(self._reached) if self._reached is not None else None
