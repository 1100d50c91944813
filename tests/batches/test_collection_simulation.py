"""Random histories in which collections are created again, emptied, and the bucket flushed.

The world is that of `simulation`, read as with ``onRollback=restate``: a collection that begins in
a vbucket is restated there. A running sum and a table by key, changed batch by batch, must equal
the bucket whenever all was read; rules that lack a part are found out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from simulation import Row, VBucket, World, WrongTable
from test_retraction import Downstream, Held, RestatingSimulation, restating_plan

from upriver.batches.offset_planning import ObservedVBucket
from upriver.batches.offset_ranges import ReadStep
from upriver.batches.offsets import Offset
from upriver.batches.restate import Restated
from upriver.batches.spilled_keys import LiveKeys
from upriver.model import FailoverLog
from upriver.spark.functions.retract_stream import compensated

HISTORIES = 600
COLLECTIONS = ("a", "b")
#: The key of the event that a collection began; documents of it have keys such as a/k1.
EVENT = "@"


class CollectionVBucket(VBucket):
    """A vbucket whose documents leave when their collection begins anew."""

    def begin(self, collection: str) -> None:
        """The collection was dropped and made again, or emptied."""
        self.write(EVENT + collection, 1)
        self.rebuild()

    def fail_over(self, vbuuid: int, seqno: int, received: int, purge_upto: int) -> None:
        super().fail_over(vbuuid, seqno, received, 0)
        self.rebuild()
        self.purge(purge_upto)

    def rebuild(self) -> None:
        purged = {key for _, key, _ in self.history} - self.newest.keys()
        self.newest = {}
        for seqno, key, value in self.history:
            if key.startswith(EVENT):
                for gone in [one for one in self.newest if one.startswith(f"{key[1:]}/")]:
                    del self.newest[gone]
            self.newest[key] = (seqno, value)
        for key in purged:
            if key in self.newest and self.newest[key][1] is None:
                del self.newest[key]

    def flush(self, vbuuid: int) -> None:
        """Everything is gone, and the history begins anew."""
        self.history, self.newest, self.high = [], {}, 0
        self.log = FailoverLog.of((vbuuid, 0))
        self.purge_seqno, self.forgotten = 0, None


class ByCollection(Downstream):
    """What is behind the stream, of documents with the names of their collections."""

    def __iadd__(self, batch: Iterable[Row]) -> ByCollection:  # type: ignore[override,misc]
        by_vbucket: dict[int, list[Row]] = {}
        for row in batch:
            by_vbucket.setdefault(row.vbucket, []).append(row)
        for vbucket, rows in by_vbucket.items():
            held = self.held.setdefault(vbucket, Held())
            signed = list(compensated(map(as_dict, rows), held))
            for sign, told in sorted(signed, key=lambda one: one[0]):
                self.sum += sign * told["value"]
                place = (vbucket, told["key"].decode())
                if sign < 0:
                    assert self.table.pop(place) == told["value"]
                else:
                    assert place not in self.table
                    self.table[place] = told["value"]
        return self


def as_dict(row: Row) -> dict[str, Any]:
    told: Any = row.value
    value, collection = (told[1], told[0]) if row.key is None else (told, row.key[0])
    return {
        "op": "restated" if row.key is None else "deletion" if value is None else "mutation",
        "branch": row.branch,
        "seqno": row.seqno,
        "scope": "_default",
        "collection": collection,
        "key": row.key.encode() if row.key is not None else None,
        "value": value,
    }


def is_event(arrived: tuple[int, int, str, int | None]) -> bool:
    return arrived[2].startswith(EVENT)


class CollectionSimulation(RestatingSimulation):
    """Collections come and go while vbuckets are read as the task reader does it."""

    heeds_events = True
    tells_seqno = True
    #: Whether streams that stay open are closed when one brings an event.
    closes_streams = True

    def __init__(self, seed: int, world: World) -> None:
        super().__init__(seed, world)
        self.vbuckets = [CollectionVBucket(self.new_vbuuid()) for _ in self.vbuckets]
        self.keys = [f"{name}/{key}" for name in COLLECTIONS for key in self.keys[:4]]

    def first_offset(self) -> Offset:
        at = super().first_offset()
        self.rows = ByCollection(compensates=True)
        return at

    def anything(self, most: int) -> None:
        super().anything(most)
        for number, vbucket in enumerate(self.vbuckets):
            assert isinstance(vbucket, CollectionVBucket)
            if self.random.random() < 0.12:
                vbucket.begin(self.random.choice(COLLECTIONS))
                self.seen["begun"] += 1
            if self.random.random() < 0.01:
                vbucket.flush(self.new_vbuuid())
                self.seen["flushed"] += 1
                if self.streams is not None:
                    self.streams.ended.add(number)

    def facts_ahead(self, at: Offset) -> dict[int, ObservedVBucket] | None:
        """Only tasks restate: an event ends reading ahead, before what follows it is planned."""
        facts = super().facts_ahead(at)
        if self.streams is not None and any(map(is_event, self.streams.arrived)):
            self.seen["event ahead"] += 1
            if self.closes_streams:
                self.streams = None
                return None
            self.streams.arrived = [one for one in self.streams.arrived if not is_event(one)]
        return facts

    def read(self, step: ReadStep, rows: list[Row], *, quiet: bool) -> None:
        skips, found = self.seen["SKIP"], list[Row]()
        reading = step
        if step.rolls_back:
            reading = replace(step.from_the_beginning(), end=2**62, rolls_back=False)
        if not step.rolls_back or step.from_the_beginning().has_range:
            super(RestatingSimulation, self).read(reading, found, quiet=quiet)
        keys, begun = LiveKeys(most=3), dict[str, int]()
        for row in sorted(found, key=lambda row: row.seqno):
            name = str(row.key)
            if name.startswith(EVENT):
                begun[name[1:]] = row.seqno
                keys.forget(name[1:])
            else:
                keys.add(name[0], name.encode(), lives=row.value is not None)
                rows.append(row)
        chosen: Iterable[str] = ()
        if self.seen["SKIP"] == skips:
            if step.rolls_back:
                chosen = COLLECTIONS
                self.seen["restated"] += 1
            elif self.heeds_events:
                chosen = sorted(begun)
        for collection in chosen:
            for part in keys.take(collection):
                told = Restated(
                    *(0, 1, frozenset(part.keys)),
                    part=part.part,
                    parts=part.parts,
                    begun=begun.get(collection, 0) if self.tells_seqno else 0,
                    whole=step.rolls_back,
                )
                value: Any = (collection, told.to_json())
                rows.append(Row(step.vbucket, step.branch, step.end, None, value))
        keys.close()

    def compare(self, at: Offset) -> None:
        downstream = self.rows
        assert isinstance(downstream, ByCollection)
        documents = {
            (number, key): value
            for number, vbucket in enumerate(self.vbuckets)
            for key, (_, value) in vbucket.newest.items()
            if value is not None and not key.startswith(EVENT)
        }
        if downstream.table != documents or downstream.sum != sum(documents.values()):
            raise WrongTable(f"it is {downstream.table}, the documents are {documents}")


class Deaf(CollectionSimulation):
    heeds_events = False


class Vague(CollectionSimulation):
    tells_seqno = False


class Hasty(CollectionSimulation):
    closes_streams = False


def wrong(kind: type[CollectionSimulation], seen: list[str] | None = None) -> Iterator[int]:
    for seed in range(HISTORIES):
        simulation = kind(seed, World(plan=restating_plan))
        try:
            simulation.run()
        except (WrongTable, AssertionError, KeyError):
            yield seed
        if seen is not None:
            seen += simulation.seen


def test_sums_and_keyed_tables_equal_the_bucket_while_collections_begin_anew() -> None:
    seen: list[str] = []
    assert not list(wrong(CollectionSimulation, seen))
    happened = {"begun", "flushed", "restated", "replay", "read ahead", "event ahead"}
    assert happened <= set(seen)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Deaf, id="that a collection began is not told"),
        pytest.param(Vague, id="rows from before it began count"),
        pytest.param(Hasty, id="what follows the event is read ahead"),
    ],
)
def test_a_rule_that_lacks_a_part_is_found_out(kind: type[CollectionSimulation]) -> None:
    assert len(list(islice(wrong(kind), 3))) == 3
