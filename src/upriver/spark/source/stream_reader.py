"""The streaming read as Spark drives it: offsets out, partitions out, rows out.

Spark makes three of these: one in a process beside the driver, which lives as long as the query and
plans; one that is pickled; and one in every task, which reads. Only plain options are pickled. How
Spark asks for the end of the next batch depends on its version: `stream_reader_spark42` for 4.2 and
later, `stream_reader_spark40` for 4.0 and 4.1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...batches.admission import Limits
from ...batches.offset_planning import nowhere
from ...batches.offset_ranges import ReadStep, partition, steps_between
from ...batches.offsets import Offset
from ...batches.options import MuteServer, ReadOptions
from ...batches.read_ahead import ArrivedChanges
from ...batches.stream_driver import Driver
from ...batches.task_reader import read_steps
from ...consumer.transport.connection_string import Address
from ..runtime.spark_versions import has_admission_control

#: Seconds that a plan waits for vbuckets that no node serves: a failover is often over by then, and
#: all the others wait with it.
_PATIENCE: Final = 1.0


class StepsPartition(InputPartition):
    """The work of one task, the nodes that the cluster has by now, and changes read already."""

    def __init__(
        self,
        steps: Sequence[ReadStep],
        nodes: Sequence[Address] = (),
        arrived: ArrivedChanges | None = None,
        mute: MuteServer | None = None,
    ) -> None:
        super().__init__(None)
        self.steps = tuple(steps)
        self.nodes = tuple(nodes)
        self.arrived = arrived
        #: What the driver knows of a server that answers no questions.
        self.mute = mute

    def options(self, planned: ReadOptions) -> ReadOptions:
        """The options of the read for this task: it finds the cluster if its named host died."""
        return replace(planned, mute=self.mute).knowing(self.nodes)


def groups_for(
    options: ReadOptions, nodes: int, steps: Sequence[ReadStep]
) -> list[tuple[ReadStep, ...]]:
    """The steps of a batch for as many tasks as were asked for, or as can be busy."""
    least = options.min_partitions or 1
    most = options.num_partitions or max(2 * nodes, os.cpu_count() or 1)
    return partition(steps, max(most, least), least=least)


class DcpStreamReader(DataSourceStreamReader):
    """Reads the changes of a bucket, batch after batch; the base of the two kinds of reader."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._driver: Driver | None = None
        #: The end of the batch that was planned last, which is not replayed.
        self._planned: dict[str, Any] | None = None
        self._reached: Offset | None = None
        #: The newest offsets as Spark has them: it gives each back several times.
        self._known: list[tuple[dict[str, Any], Offset]] = []

    def __getstate__(self) -> dict[str, Any]:
        at_work = dict.fromkeys(("_driver", "_planned", "_reached"))
        return {**self.__dict__, **at_work, "_known": []}

    @property
    def _at_work(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._options, patience=_PATIENCE, reads_ahead=True)
        return self._driver

    # ---- planning ------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Nothing is decided yet: Spark asks twice and keeps neither answer."""
        return {}

    def _next(
        self, start: dict[str, Any], previous: Offset, limits: Limits, patience: float
    ) -> dict[str, Any]:
        """The end of the batch after ``previous``, which Spark has as ``start``."""
        planned = self._at_work.next_offset(
            previous,
            limits,
            patience=patience,
            can_restore=nowhere if self._options.restate_on_rollback else None,
            closes_ends=True,
        )
        self._reached = planned
        # what is equal must be the same text, and it is if it is the same object
        self._planned = start if planned is previous else self._told(planned)
        return self._planned

    def _told(self, offset: Offset) -> dict[str, Any]:
        """An offset for Spark, which is remembered."""
        content = offset.to_dict()
        self._known = [*self._known[-1:], (content, offset)]
        return content

    def _offset(self, stored: dict[str, Any]) -> Offset | None:
        """An offset that Spark gives back; None if nothing was decided yet."""
        source = self._at_work.identity()  # it may be another bucket of that name by now
        for content, offset in self._known:
            if offset.source == source and content == stored:
                return offset
        found = self._at_work.offset_of(stored)
        if found is not None:
            self._known = [*self._known[-1:], (stored, found)]
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[StepsPartition]:
        driver = self._at_work
        last = self._offset(end)
        if last is None:
            return []
        first = self._offset(start) or self._before_first(last)
        branches = None if end == self._planned else driver.newest_branches(last.progress)
        steps = steps_between(first, last, branches, restates=self._options.restate_on_rollback)
        arrived = driver.arrived(last)
        if arrived is not None:
            return [StepsPartition(steps, (), arrived)]
        groups = groups_for(self._options, driver.nodes(), steps)
        mute = driver.reading().mute
        return [StepsPartition(group, driver.addresses, mute=mute) for group in groups]

    def _before_first(self, end: Offset) -> Offset | None:
        """What the first batch of a query follows; None if its end is enough."""
        raise NotImplementedError

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: what a server keeps does not depend on its readers."""

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # ---- reading -------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StepsPartition)
        options = partition.options(self._options)
        return read_steps(options, partition.steps, arrived=partition.arrived)


def stream_reader(options: ReadOptions) -> DcpStreamReader:
    """The reader for the installed Spark."""
    if has_admission_control():
        from .stream_reader_spark42 import Spark42StreamReader

        return Spark42StreamReader(options)
    from .stream_reader_spark40 import Spark40StreamReader

    return Spark40StreamReader(options)
