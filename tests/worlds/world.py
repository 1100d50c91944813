"""A world: nodes, clients and a reader on simulated machines, from one seed.

    outcome = run(Plan.of(7, SINGLE))

A world does what its plan says while things break. Then everything is mended, and it must come to
rest: nothing acknowledged is lost, the reader has what the bucket has. `Violation` says which
guarantee did not hold. The same plan always gives the same trace.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from upriver import _daemon, _entropy
from upriver.consumer.transport.access import Access
from upriver.errors import StoreError
from upriver.producer.server_settings import ServerSettings
from upriver.store import Bucket, BucketSettings

from .client import Client, Wish
from .committed_branches import Histories, Violation
from .disk import SimulatedDisk
from .faults import FAULTS
from .linearizability import Operation, explain
from .memory_bounds import check_memory
from .network import Network
from .node import Node
from .plan import Plan, Step
from .reader import Reader
from .scheduler import Process, Scheduler

FIRST_PORT: Final = 11001
BUCKET: Final = "default"
BUCKET_UUID: Final = "0123456789abcdef0123456789abcdef"
#: True seconds in which a mended world comes to rest.
PATIENCE: Final = 240.0
#: Lines of a trace that are kept for people; all count for its hash.
_MOST_LINES: Final = 5000


@dataclass(slots=True)
class Outcome:
    """What became of a world."""

    seed: int
    trace_hash: str
    #: What happened, how often.
    counts: Counter[str]
    seconds: float
    trace: list[str] = field(default_factory=list)
    violation: Violation | None = None


class World:
    """One world. `run` runs it to its end."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = random.Random(f"world {plan.scope.name} {plan.seed}")
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self._hash = hashlib.sha256()
        self._events = 0
        self.scheduler = Scheduler(random.Random(f"order {plan.seed}"))
        network_chance = random.Random(f"network {plan.seed}")
        self.network = Network(self.scheduler, network_chance, plan.network, self.trace)
        self.histories = Histories()
        self.processes: list[Process] = []
        self.nodes = [self.new_node(number) for number in range(plan.scope.nodes)]
        addresses = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        self.source = f"couchbase://{addresses}/{BUCKET}"
        self.access = Access()
        self.losses: list[Operation] = []
        self.clients: list[Client] = []
        self.reader = Reader(
            self.source,
            plan.vbuckets,
            self.histories,
            self.trace,
            self.access,
            buffer=plan.buffer,
        )
        self.reader_process: Process | None = None
        #: When the plan begins: once everything is up.
        self.begun_at = 0.0

    # ---- what happens --------------------------------------------------------------------

    def trace(self, *words: object) -> None:
        """Notes that something happened."""
        self._events += 1
        line = f"{self.scheduler.now:.6f} {' '.join(map(str, words))}"
        self._hash.update(line.encode())
        self.counts[str(words[0])] += 1
        if words[0] != "bytes" and len(self.lines) < _MOST_LINES:
            self.lines.append(line)

    def moment(self) -> int:
        """A number that rises with everything that happens."""
        self._events += 1
        return self._events

    def outcome(self) -> Outcome:
        return Outcome(
            self.plan.seed, self._hash.hexdigest(), self.counts, self.scheduler.now, self.lines
        )

    # ---- making it -----------------------------------------------------------------------

    def new_process(self, name: str) -> Process:
        rate = self.plan.rates[len(self.processes) % len(self.plan.rates)]
        process = Process(name, self.scheduler, self.network, rate=rate)
        process.number = len(self.processes)
        self.processes.append(process)
        return process

    def new_node(self, number: int) -> Node:
        return self.node_with(
            number,
            BucketSettings(
                vbuckets=self.plan.vbuckets,
                durability=self.plan.sync,
                sync_interval=1.0,
                maintenance_interval=0,
                purge_age=0,
            ),
        )

    def node_with(
        self, number: int, bucket: BucketSettings, settings: ServerSettings | None = None
    ) -> Node:
        name = f"n{number + 1}"
        disk = SimulatedDisk(random.Random(f"disk {name} {self.plan.seed}"))
        disk.on_batch = lambda batch: self.histories.saw(name, batch)
        disk.on_power_failure = lambda left: self.histories.reloaded(name, left)
        return Node(
            name,
            disk,
            self.new_process,
            port=FIRST_PORT + number,
            bucket=BUCKET,
            bucket_settings=bucket,
            bucket_uuid=BUCKET_UUID,
            settings=settings,
        )

    def _new_client(self, name: str) -> Client:
        process = self.new_process(name)
        client = process.call(
            lambda: Client(name, self.source, self.plan.vbuckets, self.moment, self.access)
        )
        self.clients.append(client)
        process.spawn(client.run())
        return client

    def start_reader(self) -> None:
        if self.reader_process is None or not self.reader_process.alive:
            self.reader_process = self.new_process("reader")
            self.reader_process.spawn(self.reader.live())

    # ---- running it ----------------------------------------------------------------------

    def run(self) -> Outcome:
        """Runs the plan, mends everything, and checks what must hold then."""
        with (
            _entropy.seeded(random.Random(f"names {self.plan.seed}")),
            _daemon.inline(),
            _quiet(),
            self.surroundings(),
        ):
            try:
                self.begin()
                self._look_at_memory()
                for step in self.plan.steps:
                    self.scheduler.at(self.begun_at + step.at, partial(self._do, step))
                self.scheduler.run(lambda: False, before=self.begun_at + self.plan.scope.seconds)
                self.mend()
                self.come_to_rest()
                self.check()
            finally:
                for process in self.processes:
                    process.dispose()
        return self.outcome()

    def begin(self) -> None:
        for node in self.nodes:
            node.start()
        for number in range(self.plan.scope.clients):
            self._new_client(f"c{number + 1}")
        self.start_reader()

    def _do(self, step: Step) -> None:
        self.trace("step", step.action, *step.args)
        if step.action == "operation":
            number, kind, key, value, level = step.args
            process = next(p for p in self.processes if p.name == f"c{number + 1}")
            process.call(lambda: self.clients[number].wish(Wish(kind, key, value, level)))
        elif step.action == "checkpoint":
            if self.reader_process is not None and self.reader_process.alive:
                self.reader_process.spawn(self.reader.checkpoint())
        else:
            FAULTS[step.action](self, *step.args)

    def mend(self) -> None:
        self.trace("mend")
        self.network.heal()
        for process in self.processes:
            process.stopped_until = 0.0
            if process.alive:
                process.loop.call_soon(lambda: None)
        for node in self.nodes:
            node.disk.full = False
            node.disk.slowness = 1.0
            node.start()
        self.start_reader()

    def come_to_rest(self) -> None:
        until = self.scheduler.now + PATIENCE
        if not self.scheduler.run(lambda: all(c.idle for c in self.clients), before=until):
            raise Violation("clients are answered", "a client waits for ever")
        self._read_all()
        if not self.scheduler.run(self.is_caught_up, before=self.scheduler.now + PATIENCE):
            raise Violation("lag reaches 0", "; ".join(self.differences()))

    def _read_all(self) -> None:
        """Reads every key once more, for the last word on it."""
        keys = sorted({op.key for client in self.clients for op in client.operations})
        last = self._new_client("last")
        process = self.processes[-1]

        async def read() -> list[bytes]:
            return [key for key in keys if await last.read(key) is None]

        task: asyncio.Task[list[bytes]] = process.spawn(read())
        if not self.scheduler.run(task.done, before=self.scheduler.now + 4 * PATIENCE):
            raise Violation("clients are answered", "the last reads are never answered")
        if task.result():
            raise Violation("clients are answered", f"{task.result()} cannot be read")

    # ---- what must hold ------------------------------------------------------------------

    def bucket_of(self, vbucket: int) -> Bucket:
        """The bucket of the node that has the active copy of a vbucket."""
        bucket = self.nodes[0].bucket
        assert bucket is not None, self.nodes[0].problem
        return bucket

    def documents(self, vbucket: int) -> dict[bytes, bytes]:
        """The documents of a vbucket, by the history of its branch."""
        bucket = self.bucket_of(vbucket)
        newest = bucket.failover_log(vbucket).newest.vbuuid
        branch = self.histories.branches[vbucket, newest]
        seqnos = branch.newest(bucket.vbucket_stats(vbucket).high_seqno)
        found = {key: branch.changes[seqno].value for key, seqno in seqnos.items()}
        return {key: value for key, value in found.items() if value is not None}

    def differences(self) -> Iterator[str]:
        for vbucket in range(self.plan.vbuckets):
            told, real = self.reader.documents(vbucket), self.documents(vbucket)
            if told != real:
                yield f"vbucket {vbucket}: the reader has {told}, the bucket has {real}"

    def is_caught_up(self) -> bool:
        return all(node.is_up for node in self.nodes) and not any(self.differences())

    def check(self) -> None:
        by_key: dict[bytes, list[Operation]] = {}
        for client in self.clients:
            for op in filter(self.counts_answer, client.operations):
                by_key.setdefault(op.key, []).append(op)
        for key, operations in sorted(by_key.items()):
            all_of_it = [*operations, *self.losses_of(key)]
            if not explain(all_of_it):
                lines = sorted(all_of_it, key=lambda op: op.invoked)
                raise Violation(
                    "acknowledged writes are there",
                    f"no order explains the answers for {key.decode()}:\n  "
                    + "\n  ".join(map(str, lines)),
                )
        for node in self.nodes:
            assert node.bucket is not None
            try:
                problems = node.bucket.verify()
            except StoreError:  # its disk was full, and it has not tried again since
                self.scheduler.run(lambda: False, before=self.scheduler.now + PATIENCE)
                problems = node.bucket.verify()
            if problems:
                raise Violation("a store is consistent", f"{node.name}: {'; '.join(problems)}")

    def counts_answer(self, operation: Operation) -> bool:
        """Whether what a client was told must agree with what the others were told."""
        return True

    def check_memory(self) -> None:
        """Nothing that runs has grown too far; checked every second."""
        check_memory(self)

    def _look_at_memory(self) -> None:
        self.check_memory()
        self.reader.check_rules()
        self.scheduler.after(1.0, self._look_at_memory)

    def losses_of(self, key: bytes) -> list[Operation]:
        """What happened to a key without any operation on it."""
        return self.losses

    def lose(self, kind: str) -> None:
        """Notes that acknowledged writes may be lost at this moment."""
        moment = self.moment()
        self.losses.append(Operation("world", b"", kind, invoked=moment, returned=self.moment()))

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """What a world needs while it runs, and no longer."""
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """What breaks is wanted here: the logs of it would hide what matters.

    So are pipelines that nobody stops: that of a killed process goes when the memory is collected.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            yield
    finally:
        logging.disable(before)
