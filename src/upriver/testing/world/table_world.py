"""A world with a pipeline: the driver plans, attempts read, and commits make the table grow.

Planning, steps, verdicts and the log of the table are those of the pipelines in Spark; streams are
real. Storage is a simulated object store: a file of a name is created once, and answers get lost.
Drivers die between any two of their lines, and a second one may run beside the first.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from ...consumer.async_client import AsyncConsumer
from ...consumer.checkpoints.position_check import probe
from ...consumer.reader_settings import ConsumerSettings, RollbackPolicy
from ...consumer.transport.access import Access
from ...consumer.transport.async_connection import AsyncConnection
from ...consumer.transport.connection_string import Source
from ...errors import UpriverError
from ...model import FailoverLog, Op
from ...session.consumer_events import RolledBack, Rows
from ...session.stream_position import Position
from ...spark.source.admission import Limits
from ...spark.source.offset_planning import ObservedVBucket, from_beginning, plan
from ...spark.source.offsets import Offset, SourceIdentity
from ...spark.source.task_steps import ReadStep, StepVerdict, judge, steps_between
from ...spark.tables.format.delta_log import DataFile, commit, read_snapshot
from ...spark.tables.format.storage import Storage, StorageFailed, StoredFile
from ...wire import kv_messages as kv
from ...wire import messages as m
from ...wire.dialects import Dcp
from ...wire.names import RequestedState
from .history import Violation
from .plan import Plan
from .scheduler import Process
from .world import BUCKET, BUCKET_UUID, FAULTS, PATIENCE, World

__all__ = ["TableWorld"]

_SETTINGS: Final = ConsumerSettings(
    name="pipeline",
    dialect="dcp",
    connect_timeout=2.0,
    answer_timeout=4.0,
    give_up_after=6.0,
    retry_most=1.0,
)
_PAUSE: Final = 0.3
#: A row: vbucket, branch, seqno, key and value; the key of a rollback is None, as is the value of
#: a deletion.
_Row = tuple[int, int, int, str | None, str | None]


class _Failed(Exception):
    """An attempt at a batch fails; another one is made."""


@dataclass(frozen=True)
class _ObjectStore(Storage):
    """A simulated object store. Every process of a world has the same."""

    chance: random.Random = field(default_factory=random.Random)
    content: dict[str, bytes] = field(default_factory=dict)
    #: The part of requests that fail, half of them after they were carried out.
    failing: list[float] = field(default_factory=lambda: [0.0])

    def create(self, path: str, data: bytes) -> bool:
        def do() -> bool:
            return self.content.setdefault(path, data) is data

        return bool(self._carry_out(do))

    def put(self, path: str, data: Any) -> None:
        self._carry_out(lambda: self.content.__setitem__(path, data))

    def read(self, path: str) -> bytes:
        self._carry_out(lambda: None)
        if path not in self.content:
            raise FileNotFoundError(path)
        return self.content[path]

    def files(self, prefix: str = "", after: str | None = None) -> Iterator[StoredFile]:
        self._carry_out(lambda: None)
        for path in sorted(self.content):
            if path.startswith(prefix):
                yield StoredFile(path, len(self.content[path]), datetime.fromtimestamp(0, UTC))

    def _carry_out(self, do: Any) -> Any:
        fails = self.chance.random() < self.failing[0]
        if fails and self.chance.random() < 0.5:
            raise StorageFailed("the store answers 503")
        done = do()
        if fails:
            raise StorageFailed("the answer of the store was lost")
        return done


class Pipeline:
    """One life of a driver."""

    def __init__(self, world: TableWorld, number: int) -> None:
        self._world = world
        self._number = number
        self._source = Source.parse(world.source)
        self._identity = SourceIdentity(BUCKET, BUCKET_UUID, world.plan.vbuckets)
        self._attempts = 0

    async def run(self) -> None:
        while True:
            try:
                await self._batch()
            except (UpriverError, OSError, _Failed) as problem:
                self._world.trace("pipeline", self._number, type(problem).__name__)
                await asyncio.sleep(_PAUSE)

    async def _batch(self) -> None:
        """Plans, reads and commits once."""
        storage = self._world.storage
        await asyncio.sleep(0.01)
        table = read_snapshot(storage)
        version = -1 if table is None else table.version
        at = from_beginning(self._identity)
        if table is not None and table.state is not None:
            at = Offset.of_dict(json.loads(table.state), self._identity) or at
        path = f"plans/{version + 1:06}.json"
        try:
            end = Offset.of_dict(json.loads(storage.read(path)), self._identity)
            replayed = True
        except FileNotFoundError:
            end, replayed = await self._planned(at), False
            if end is None:
                await asyncio.sleep(_PAUSE)
                return
            text = json.dumps(end.to_dict()).encode()
            await asyncio.sleep(0.01)
            if not storage.create(path, text) and storage.read(path) != text:
                return  # another driver was first: its plan counts
        assert end is not None
        rows = await self._read(at, end, replayed=replayed)
        self._attempts += 1
        name = f"part-{version + 1:06}-{self._number}-{self._attempts}.json"
        data = json.dumps(rows).encode()
        storage.put(name, data)
        await asyncio.sleep(0.02)
        file = DataFile(name, len(data), len(rows), stats=json.dumps({"numRecords": len(rows)}))
        made = commit(
            storage,
            version + 1,
            [file.add_action()],
            operation="STREAMING UPDATE",
            state=json.dumps(end.to_dict()),
        )
        self._world.trace("committed" if made else "conflict", version + 1, len(rows))

    # ---- the driver ----------------------------------------------------------------------

    async def _planned(self, at: Offset) -> Offset | None:
        facts = await self._facts(at)
        limit = self._world.pipeline_chance.choice((1, 3, None))
        end = plan(at, facts, Limits(rows=limit))
        return None if end == at else end

    async def _facts(self, at: Offset) -> dict[int, ObservedVBucket]:
        """Seqnos and failover logs that belong together, and whether steps would be refused."""
        connection = AsyncConnection(
            self._source.addresses[0], self._source, Access(), _SETTINGS, Dcp(collections=True)
        )
        try:
            await connection.open(streams=False)
            before = await self._logs(connection)
            answer = await connection.ask(kv.GetAllSeqnos(state=RequestedState.ACTIVE))
            after = await self._logs(connection)
        finally:
            connection.close()
        if not isinstance(answer, kv.AllSeqnosResponse):
            raise _Failed
        facts = {
            vb: ObservedVBucket(seqno, after[vb])
            for vb, seqno in answer.seqnos
            if vb in after and before.get(vb) == after[vb]
        }
        asked = {
            vb: Position(progress.request, progress.log)
            for vb, fact in facts.items()
            if (progress := at.at(vb)).request.seqno
            and progress.vbuuid == fact.failover_log.newest.vbuuid
        }
        if asked:
            verdicts = await probe(self._source, Access(), _SETTINGS, asked)
            for vb, verdict in verdicts.items():
                facts[vb] = replace(facts[vb], refused=not verdict.accepted)
        return {vb: f for vb, f in facts.items() if f.high_seqno or len(at.at(vb).log)}

    async def _logs(self, connection: AsyncConnection) -> dict[int, FailoverLog]:
        logs = {}
        for vbucket in range(self._identity.vbuckets):
            answer = await connection.ask(m.FailoverLogRequest(vbucket=vbucket))
            if isinstance(answer, m.FailoverLogResponse):
                logs[vbucket] = FailoverLog(tuple(answer.failover_log))
        return logs

    # ---- the tasks -----------------------------------------------------------------------

    async def _read(self, at: Offset, end: Offset, *, replayed: bool) -> list[_Row]:
        branches: Mapping[int, int] | None = None
        if replayed:
            facts = await self._facts(at)
            branches = {vb: fact.failover_log.newest.vbuuid for vb, fact in facts.items()}
        steps = steps_between(at, end, branches)
        rows: list[_Row] = [
            (step.vbucket, step.branch, step.start, None, None) for step in steps if step.rolls_back
        ]
        wanted = {step.vbucket: step for step in steps if step.has_range}
        if wanted:
            rows += await self._attempt(wanted)
        return rows

    async def _attempt(self, steps: dict[int, ReadStep]) -> list[_Row]:
        positions = {
            vb: Position(step.offset, FailoverLog.of((step.offset.vbuuid, 0)))
            for vb, step in steps.items()
        }
        settings = replace(
            _SETTINGS,
            start=positions,
            end={vb: step.end for vb, step in steps.items()},
            rollback=RollbackPolicy.STOP,
        )
        consumer = AsyncConsumer(self._source, settings=settings)
        rows: list[_Row] = []
        try:
            await consumer.start()
            while (event := await consumer.poll()) is not None:
                if isinstance(event, Rows):
                    rows += self._rows(event, steps)
                elif isinstance(event, RolledBack):
                    step = steps[event.vbucket]
                    asked = replace(step.offset, seqno=event.from_seqno)
                    if judge(step, asked, event.served, granted=False) is not StepVerdict.SKIP:
                        raise _Failed
        finally:
            await consumer.close()
        return rows

    @staticmethod
    def _rows(event: Rows, steps: Mapping[int, ReadStep]) -> list[_Row]:
        found: list[_Row] = []
        for row in event.batch.select(["vbucket", "seqno", "key", "op", "value"]).to_pylist():
            step = steps[row["vbucket"]]
            if step.wants(row["seqno"]):
                gone = row["op"] != Op.MUTATION.value
                value = None if gone else row["value"].decode()
                key = row["key"].decode()
                found.append((step.vbucket, step.branch, row["seqno"], key, value))
        return found


class TableWorld(World):
    """A world with one node and a pipeline that writes a table."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.pipeline_chance = random.Random(f"pipeline {plan.seed}")
        self.storage = _ObjectStore("memory://table", chance=random.Random(f"storage {plan.seed}"))
        self.drivers: list[Process] = []
        self._lives = 0

    def begin(self) -> None:
        super().begin()
        self.storage.failing[0] = self.chance.choice((0.0, 0.02, 0.1))
        self.start_driver()

    def start_driver(self) -> None:
        """Starts a driver; an earlier one may still run."""
        self._lives += 1
        process = self.new_process("driver")
        self.drivers.append(process)
        process.spawn(Pipeline(self, self._lives).run())

    def mend(self) -> None:
        self.storage.failing[0] = 0.0
        super().mend()
        if not any(driver.alive for driver in self.drivers):
            self.start_driver()

    def come_to_rest(self) -> None:
        super().come_to_rest()
        until = self.scheduler.now + PATIENCE
        if not self.scheduler.run(lambda: self.table() == self._wanted(), before=until):
            raise Violation(
                "a table equals its bucket",
                f"the table has {self.table()}, the bucket has {self._wanted()}",
            )

    def _wanted(self) -> dict[tuple[int, str], str]:
        return {
            (vb, key.decode()): value.decode()
            for vb in range(self.plan.vbuckets)
            for key, value in self.documents(vb).items()
        }

    def table(self) -> dict[tuple[int, str], str]:
        """The documents that the rows of the table amount to."""
        found = read_snapshot(self.storage)
        names = found.files if found is not None else {}
        rows: list[_Row] = [
            (*row,) for name in names for row in json.loads(self.storage.content[name])
        ]
        rollbacks = [(vb, branch, seqno) for vb, branch, seqno, key, _ in rows if key is None]
        newest: dict[tuple[int, str], tuple[int, int, str | None]] = {}
        for vb, branch, seqno, key, value in rows:
            dead = any(v == vb and b > branch and at < seqno for v, b, at in rollbacks)
            if key is None or dead:
                continue
            held = newest.get((vb, key))
            if held is not None and held[:2] == (branch, seqno):
                raise Violation("a change is in a table once", f"vbucket {vb}, seqno {seqno}")
            if held is None or (branch, seqno) > held[:2]:
                newest[vb, key] = (branch, seqno, value)
        return {place: value for place, (_, _, value) in newest.items() if value is not None}


def _driver_dies(world: World, which: int, seconds: float, amount: int) -> None:
    assert isinstance(world, TableWorld)
    for driver in world.drivers:
        if driver.alive:
            driver.kill()
    world.scheduler.after(seconds / 4, world.start_driver)


def _second_driver(world: World, which: int, seconds: float, amount: int) -> None:
    assert isinstance(world, TableWorld)
    world.start_driver()


FAULTS["driver dies"] = _driver_dies
FAULTS["second driver"] = _second_driver
