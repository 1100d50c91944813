"""The batch read: planned like the first batch of a stream, each vbucket to a snapshot's end.

The driver looks how far each vbucket is and splits them over tasks. Spark plans a frame once and
reads it whenever it is used, so each wanted vbucket has a step, and a task asks again how far its
vbuckets are. It reads at least that far and then to the end of the snapshot it is in, so that no
key is missing because it moved on; with ``endingOffsets`` it stops exactly there. After a failover
in the middle a task fails, and its next attempt reads what there is then. With
``onRollback=restate`` its rows are those of a restated vbucket, for all of them (see `restate`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...batches.admission import Limits
from ...batches.offset_planning import from_positions
from ...batches.offset_ranges import ReadStep, steps_between
from ...batches.offsets import Offset
from ...batches.options import ReadOptions
from ...batches.row_conditions import RowConditions
from ...batches.stream_driver import Driver
from ...batches.task_reader import read_whole_snapshots
from ...consumer.checkpoints.checkpoint import Checkpoint
from ...consumer.transport.connection_string import Address
from ...errors import ConfigError, UpriverError
from ...model import FailoverLog, StreamOffset
from ...session.stream_position import Position
from ..runtime.internals import may_push_filters
from .filter_classes import Filter
from .pushdown_filters import conditions_of, decides
from .stream_reader import StepsPartition, groups_for

#: Seconds between two attempts to plan a read of which a part cannot be planned yet.
_PAUSE: Final = 0.2


class _Share(StepsPartition):
    """The work of one task, and what the plan found out: Spark pickles the reader before it."""

    def __init__(
        self, steps: Sequence[ReadStep], nodes: Sequence[Address], planned: ReadOptions
    ) -> None:
        super().__init__(steps, nodes, mute=planned.mute)
        self.collections = planned.collections


class DcpBatchReader(DataSourceReader):
    """Reads a bucket once."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._wanted = RowConditions()

    def partitions(self) -> Sequence[StepsPartition]:
        driver = Driver(self._options)
        try:
            groups = self._planned(driver)
            nodes = driver.addresses
        finally:
            driver.close()
        # where there is no partition, Spark makes one that nobody can read
        return [_Share(group, nodes, self._options) for group in groups or [()]]

    def _planned(self, driver: Driver) -> Sequence[Sequence[ReadStep]]:
        """The work of each task."""
        options = self._narrowed(driver)
        if options is None:
            return ()
        self._options = options
        driver.narrow(options)
        first = self._first(driver)
        last = self._last(driver, first)
        assert options.vbuckets is not None
        steps = [one for one in steps_between(first, last) if one.vbucket in options.vbuckets]
        steps += self._standing_still(options.vbuckets - {step.vbucket for step in steps})
        return groups_for(options, driver.nodes(), steps)

    def _standing_still(self, vbuckets: frozenset[int]) -> list[ReadStep]:
        """Steps for vbuckets that have nothing to read now.

        Spark plans a frame once and reads it whenever it is used: by then they may have something.
        """
        starting, ending = self._options.starting, self._options.ending
        if (
            self._wanted.after and not self._options.restate_on_rollback
        ):  # such a frame is used once
            return []
        steps = []
        for vbucket in sorted(vbuckets if ending is None else vbuckets & ending.keys()):
            at = starting.position(vbucket) if isinstance(starting, Checkpoint) else Position()
            steps.append(ReadStep(vbucket, 0, at.offset, at.seqno, purge_seqno=at.purge_seqno))
        return steps

    def _last(self, driver: Driver, first: Offset) -> Offset:
        """Where the read ends. A vbucket with changes that cannot be planned is never left out."""
        deadline = time.monotonic() + self._options.retry_timeout
        while True:
            target = self._target(driver)
            last = driver.next_offset(first, Limits(target=target))
            wanted = self._options.vbuckets or frozenset(target)
            missing = sorted(
                vb
                for vb in wanted & target.keys()
                if target[vb] > first.at(vb).seqno and last.at(vb) == first.at(vb)
            )
            if not missing:
                return last
            if time.monotonic() >= deadline:
                raise UpriverError(
                    f"{len(missing)} vbuckets have changes that cannot be read, the first is "
                    f"vbucket {missing[0]} with seqno {target[missing[0]]}: no node gives its "
                    "failover log; see the servers' logs"
                )
            time.sleep(_PAUSE)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        options = partition.options(replace(self._options, collections=partition.collections))
        return read_whole_snapshots(options, partition.steps, self._wanted)

    # ---- what filters spare --------------------------------------------------------------

    def _narrowed(self, driver: Driver) -> ReadOptions | None:
        """The options with what filters say; None if nothing can be wanted."""
        options, count = driver.reading(self._options), driver.identity().vbuckets
        vbuckets = self._wanted.chosen_vbuckets(count)
        if options.vbuckets is not None:
            beyond = sorted(vbucket for vbucket in options.vbuckets if vbucket >= count)
            if beyond:
                raise ConfigError(f"vbuckets: the bucket has 0 to {count - 1}, not {beyond[0]}")
            vbuckets &= options.vbuckets
        if not vbuckets:
            return None
        if self._wanted.names_collections and not options.scope:
            names = self._wanted.chosen_collections(driver.collections(), options.collections)
            if not names:
                return None
            options = replace(options, collections=names)
        return replace(options, vbuckets=vbuckets)

    def _first(self, driver: Driver) -> Offset:
        """Where the batch begins: as asked, or where filters let it."""
        if self._options.starting != "earliest" or not self._wanted.after:
            return driver.first_offset()
        after = self._wanted.after
        positions = {
            vbucket: Position(
                StreamOffset.at(sight.vbuuid, after),
                FailoverLog.of((sight.vbuuid, 0)),
            )
            for vbucket, sight in driver.look().items()
            if sight.purge_seqno is not None and sight.purge_seqno <= after < sight.high_seqno
        }
        return from_positions(driver.identity(), positions)

    def _target(self, driver: Driver) -> dict[int, int]:
        """How far each vbucket is read at least."""
        highs = driver.target()
        wanted = self._options.vbuckets or frozenset(range(driver.identity().vbuckets))
        if missing := sorted(wanted - highs.keys()):
            raise UpriverError(
                f"{len(missing)} vbuckets have no server now, the first is vbucket {missing[0]}; "
                "wait until the cluster is complete, or name those to read in vbuckets"
            )
        ending = self._options.ending
        until = {
            vb: min(high, self._wanted.until) if high > self._wanted.after else 0
            for vb, high in highs.items()
        }
        if ending is None:
            return until
        return {vb: min(end, until[vb]) for vb, end in ending.items() if vb in until}


class _FilteringReader(DcpBatchReader):
    """The same where Spark pushes filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._wanted = conditions_of(filters)
        return [one for one in filters if not decides(one)]


def batch_reader(options: ReadOptions) -> DcpBatchReader:
    """The reader of a batch, with the filters of its frame if it is to heed them."""
    wanted = options.push_filters and may_push_filters("pushFilters")
    return (_FilteringReader if wanted else DcpBatchReader)(options)
