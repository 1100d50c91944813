"""The streaming read of Spark 4.0 and 4.1, which passes neither start nor limit.

Such a Spark calls ``latestOffset()`` without a start and without a limit. The reader remembers how
far it has planned: after a restart Spark plans an empty batch first, from the last offset of its
log to the same offset. The limits of the options are applied here. Trigger.AvailableNow asks once,
so it reads one batch, which is all there is if there is no limit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ...batches.admission import Limits
from ...batches.offsets import Offset
from ...batches.options import ReadOptions
from .stream_reader import DcpStreamReader, StepsPartition

_log = logging.getLogger("upriver.spark")


class Spark40StreamReader(DcpStreamReader):
    """Its first batch begins where the options say, and the offset at its end records where."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        #: Where the next batch begins, as Spark has it.
        self._position: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_position": None}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        options = self._options
        limits = Limits(rows=options.max_offsets_per_trigger, bytes=options.max_bytes_per_trigger)
        if self._planned is None and limits.seqnos is not None:
            _log.warning(
                "a limit of batches in Spark before 4.2: with Trigger.AvailableNow the query ends "
                "after one batch, whatever is left"
            )
        previous = self._offset(self._position) if self._position is not None else None
        if self._position is None or previous is None:
            previous = self._at_work.first_offset()
            self._position = self._next(self._told(previous), previous, limits, 0.0)
        else:
            self._position = self._next(self._position, previous, limits, options.long_poll)
        return self._position

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[StepsPartition]:
        if start == end:  # a restart: this is the last offset of Spark's log
            self._position = end
            return []
        return super().partitions(start, end)

    def _before_first(self, end: Offset) -> Offset | None:
        if self._options.starting == "latest":
            return None  # "latest" is later by now
        return self._at_work.first_offset()
