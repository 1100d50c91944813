"""A world with pipelines that write a table to an object store.

The pipeline is the real one: it plans, reads, writes Parquet files, commits, compacts and vacuums,
under a lease. In place of Spark's executors it has workers whose attempts die. Drivers die at any
request, and a second one may run beside the first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from upriver.errors import ConfigError, UpriverError
from upriver.files.storage import FileGone
from upriver.tables import lease, pipeline, pipeline_tables
from upriver.tables.executors import ThisProcess
from upriver.tables.format import data_files
from upriver.tables.pipeline_settings import PipelineSettings
from upriver.tables.pipeline_start import start_pipeline
from upriver.tables.places import TablePlace
from upriver.tables.upkeep import manual_maintenance

from .committed_branches import Violation
from .faults import FAULTS
from .memory_bounds import require_at_most
from .object_store import ObjectStore, SimulatedStorage
from .patched_stdlib import machine, replaced
from .plan import Plan
from .scheduler import Process
from .table_oracle import Documents, TableOracle
from .threads import SimulatedThread, Threads, current
from .world import PATIENCE, World

#: Seconds until a driver that has ended is started again.
_PAUSE: Final = 0.5
#: Seconds that a lease lasts; less than in reality, so that several end in a world.
_LEASE: Final = 4.0
#: Attempts at a task, as Spark makes them.
_ATTEMPTS: Final = 4
#: Seconds by which maintenance comes late: what nobody can be about to commit goes then.
_LATE: Final = 7200.0
#: Seconds in which a pipeline that nothing disturbs has read everything.
_SETTLED_AFTER: Final = 20.0
#: Consumers and workers that one driver has at a time.
_MOST_CHILDREN: Final = 8
#: Bytes of the state in a commit, without what it says of other tables.
_STATE_BYTES: Final = 64 * 1024
#: Files of a pipeline besides rows: leases, and records of runs.
_MOST_OTHERS: Final = 40


class TableWorld(World):
    """A world with one node and a pipeline that writes a table."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.store = ObjectStore(random.Random(f"storage {plan.seed}"), lambda: self.scheduler.now)
        self.store.trace = self.trace
        self.storage = SimulatedStorage("memory://table", store=self.store)
        chance = random.Random(f"table {plan.seed}")
        which = chance.random()
        self.kind = "mirror" if which < 0.5 else "history" if which < 0.75 else "changelog"
        self.options = _options(chance, self.kind)
        self.checkpoint_every = chance.choice((2, 4, 50))
        workers = partial(Workers, self)
        self.does_small_batches: Any = chance.choice((ThisProcess, workers))
        self.dying = chance.choice((0.0, 0.0, 0.1, 0.3))
        self.failing = chance.choice((0.0, 0.02, 0.06))
        self.oracle = TableOracle(
            self.store,
            self.storage,
            self.histories,
            self._newest_vbuuid,
            is_mirror=self.kind != "changelog",
            trace=self.trace,
        )
        self.threads = Threads()
        self.drivers: list[Process] = []
        self._children: dict[Process, list[Process]] = {}
        self._compared = ((-1, -1, -1), False)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        with (
            machine(self.network, self.threads, self.child_of, self._is_running),
            replaced(pipeline_tables, CHECKPOINT_EVERY=self.checkpoint_every),
            replaced(lease, DURATION=_LEASE, _RENEWED_AFTER=_LEASE / 4),
            # small batches are done by the driver itself, or in half of the worlds by workers too
            replaced(pipeline, ThisProcess=self.does_small_batches),
            replaced(data_files, _indexes={}),  # what a process keeps of earlier worlds
        ):
            try:
                yield
            finally:
                self.threads.end_all()

    # ---- processes -----------------------------------------------------------------------

    def child_of(self, process: Process) -> Process:
        """A process of the same name, which dies with it."""
        child = self.new_process(process.name)
        self._children.setdefault(process, []).append(child)
        return child

    def kill(self, process: Process) -> None:
        for child in self._children.get(process, ()):
            self.kill(child)
        if process.alive:
            process.kill()

    def _is_running(self, host: str, pid: int) -> bool:
        return host == f"host{pid % 2}" and pid < len(self.processes) and self.processes[pid].alive

    def begin(self) -> None:
        super().begin()
        self.store.failing = self.failing
        self.trace("pipeline", self.kind, *sorted(self.options.items()))
        self.start_driver()

    def start_driver(self, skew: float = 0.0) -> None:
        """Starts a driver, whose clock may be wrong; an earlier one may still run."""
        process = self.new_process(f"driver{len(self.drivers) + 1}")
        process.skew = skew
        self.drivers.append(process)
        self.threads.start(process, partial(self._drive, process.name))

    def _drive(self, name: str) -> None:
        """What keeps a pipeline running: it is started again when it has ended."""
        thread = current()
        assert thread is not None
        while True:
            try:
                settings = PipelineSettings.parse(self.kind, self.source, self.options)
                running = start_pipeline(Workers(self), settings, TablePlace(self.storage))
                self.trace("runs", name)
                running.wait()
            except UpriverError as problem:
                self.trace("ended", name, type(problem).__name__)
                _require_expected(problem)
            thread.sleep(_PAUSE)

    def mend(self) -> None:
        self.store.failing = 0.0
        self.store.slowness = 1.0
        self.dying = 0.0
        super().mend()
        if not any(driver.alive for driver in self.drivers):
            self.start_driver()

    # ---- what must hold ------------------------------------------------------------------

    def check_memory(self) -> None:
        super().check_memory()
        for driver in self.drivers:
            alive = sum(child.alive for child in self._children.get(driver, ()))
            require_at_most(_MOST_CHILDREN, alive, f"consumers and workers of {driver.name}")
        if self.oracle.state is not None:
            size = len(self.oracle.state.to_text())
            require_at_most(_STATE_BYTES, size, "bytes of the state in a commit")

    def _newest_vbuuid(self, vbucket: int) -> int:
        bucket = self.nodes[0].bucket
        return 0 if bucket is None else bucket.failover_log(vbucket).newest.vbuuid

    def come_to_rest(self) -> None:
        super().come_to_rest()
        # a table that is behind may look equal: what it has not read yet has expired since
        self.scheduler.run(lambda: False, before=self.scheduler.now + _SETTLED_AFTER)
        if not self.scheduler.run(self._is_equal, before=self.scheduler.now + PATIENCE):
            raise Violation(
                "a table equals its bucket",
                f"the table has {self.oracle.documents()}, the bucket has {self._wanted()}",
            )
        self._maintain_at_last()

    def _is_equal(self) -> bool:
        histories = self.histories
        now = self.store.changes, histories.committed, len(histories.branches)
        if self._compared[0] != now:
            self._compared = now, self.oracle.documents() == self._wanted()
        return self._compared[1]

    def _wanted(self) -> Documents:
        return {
            (vb, key): value
            for vb in range(self.plan.vbuckets)
            for key, value in self.documents(vb).items()
        }

    def maintain(self, seconds: float, *, times: int = 1) -> SimulatedThread:
        """Cares for the table, as ``upriver compact`` does; versions that old are let go."""
        process = self.new_process("maintenance")

        def work() -> None:
            for _ in range(times):
                try:
                    manual_maintenance.compact(TablePlace(self.storage), seconds=seconds)
                    self.trace("maintained")
                except UpriverError as problem:
                    self.trace("not maintained", type(problem).__name__)

        return self.threads.start(process, work)

    def _maintain_at_last(self) -> None:
        """Maintenance leaves nothing that the newest versions do not need, and changes no row."""
        for driver in self.drivers:
            self.kill(driver)
        for process in self.processes:
            if process.alive and process.name.startswith(("driver", "maintenance")):
                self.kill(process)
        process = self.new_process("maintenance")
        process.skew = _LATE
        before = self.oracle.documents()

        def work() -> None:
            manual_maintenance.compact(TablePlace(self.storage), seconds=0.0)
            self.trace("maintained")

        thread = self.threads.start(process, work)
        if not self.scheduler.run(
            lambda: not thread.is_alive, before=self.scheduler.now + PATIENCE
        ):
            raise Violation("maintenance ends", "it does not")
        if (after := self.oracle.documents()) != before:
            raise Violation("maintenance changes no row", f"{before} became {after}")
        if left := self.oracle.unneeded():
            raise Violation("maintenance removes what nobody needs", f"left: {left}")
        others = [p for p in self.store.content if p.startswith("_upriver/")]
        if len(others) > _MOST_OTHERS:
            raise Violation("maintenance removes what nobody needs", f"left: {others}")


class Workers:
    """The executors of a pipeline: processes that die, and attempts that are made again."""

    parallelism = 2

    def __init__(self, world: TableWorld) -> None:
        self._world = world

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        attempts = [_Attempt(self._world, task) for task in tasks]
        return [attempt.result() for attempt in attempts]


class _Attempt:
    """A task, tried until it succeeds or has failed too often."""

    def __init__(self, world: TableWorld, task: Any) -> None:
        self._world = world
        self._task = task
        self._results: list[Any] = []
        self._problem: UpriverError | None = None
        self._tries = 0
        self._start()

    def _start(self) -> None:
        thread = current()
        assert thread is not None
        self._tries += 1
        self._driver: SimulatedThread = thread
        self._process = self._world.child_of(thread.process)
        self._world.threads.start(self._process, self._run)
        chance = self._world.chance
        if chance.random() < self._world.dying:
            self._world.scheduler.after(chance.uniform(0.0, 0.3), self._die)

    def _die(self) -> None:
        if self._process.alive and not self._results:
            self._world.trace("attempt dies")
            self._world.kill(self._process)
            self._driver.wake()

    def _run(self) -> None:
        try:
            self._results.append(self._task.run())
        except UpriverError as problem:
            self._problem = problem
        self._driver.wake()
        self._process.alive = False

    def result(self) -> Any:
        while True:
            self._driver.wait_until(lambda: bool(self._results) or not self._process.alive, None)
            if self._results:
                return self._results[0]
            if self._tries >= _ATTEMPTS:
                raise self._problem or UpriverError("a worker was lost again and again")
            self._start()


def _options(chance: random.Random, kind: str) -> dict[str, str]:
    options = {
        "connectTimeout": "2s",
        "requestTimeout": "4s",
        "retryTimeout": "10s",
        "longPoll": "1s",
        "compactEvery": str(chance.choice((1, 3, 20))),
        "keepVersions": chance.choice(("0s", "5s", "24h")),
    }
    rows = chance.choice((1, 3, None))
    if rows is not None:
        options["maxOffsetsPerTrigger"] = str(rows)
    if kind != "changelog":
        options["groups"] = str(chance.choice((1, 2, 64)))
        options["mergeOnRead"] = chance.choice(("true", "true", "false"))
        options["tablePerCollection"] = chance.choice(("false", "false", "true"))
    if kind == "mirror":
        options["keepDeleted"] = chance.choice(("false", "false", "true"))
    return options


def _require_expected(problem: UpriverError) -> None:
    """Raises what no fault of a world explains."""
    cause = problem.__cause__
    if type(problem) is UpriverError and cause is not None and not isinstance(cause, OSError):
        raise cause
    is_busy = "another pipeline is running" in str(problem)
    if isinstance(problem, FileGone) or (isinstance(problem, ConfigError) and not is_busy):
        raise problem


def _driver_dies(world: World, which: int, seconds: float, amount: int) -> None:
    """With its workers, or they finish what they do."""
    assert isinstance(world, TableWorld)
    for driver in world.drivers:
        if driver.alive:
            if amount % 2:
                world.kill(driver)
            else:
                driver.kill()
    world.scheduler.after(seconds / 4, world.start_driver)


def _second_driver(world: World, which: int, seconds: float, amount: int) -> None:
    """Its clock may be ahead: then the lease of the other one seems to have ended."""
    assert isinstance(world, TableWorld)
    world.start_driver(skew=_LEASE * (amount % 4))


def _stop_driver(world: World, which: int, seconds: float, amount: int) -> None:
    """It wakes up when another one has taken over."""
    assert isinstance(world, TableWorld)
    alive = [driver for driver in world.drivers if driver.alive]
    if alive:
        alive[which % len(alive)].stop_for(2 * seconds)
    world.start_driver()


def _maintenance(world: World, which: int, seconds: float, amount: int) -> None:
    assert isinstance(world, TableWorld)
    if world.oracle.commits:
        world.maintain(seconds if amount % 2 else 0.0, times=3)


def _slow_store(world: World, which: int, seconds: float, amount: int) -> None:
    assert isinstance(world, TableWorld)
    world.store.slowness = 5.0 * (1 + amount)

    def mended() -> None:
        world.store.slowness = 1.0

    world.scheduler.after(seconds, mended)


FAULTS["driver dies"] = _driver_dies
FAULTS["second driver"] = _second_driver
FAULTS["stop driver"] = _stop_driver
FAULTS["maintenance"] = _maintenance
FAULTS["slow store"] = _slow_store
