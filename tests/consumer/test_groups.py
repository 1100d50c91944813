"""Groups of consumers: where members meet, how they share a bucket, who replaces the dead."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from storekit_s3 import BUCKET, s3_server
from waiting import until

from upriver.consumer import (
    AsyncConsumer,
    BucketGroupStore,
    Change,
    Consumer,
    DirectoryGroupStore,
    GroupStore,
    MemoryCheckpoint,
    Revocation,
    RollbackPolicy,
    Rows,
)
from upriver.consumer.groups.assignment import Roster
from upriver.consumer.groups.cells import Stored, run_steps
from upriver.consumer.groups.object_store import ObjectGroupStore
from upriver.consumer.groups.position_cells import PositionCells, Saved
from upriver.errors import ConfigError, ConnectionFailed, RollbackRequired
from upriver.session.stream_position import Position
from upriver.testing import TemporaryCluster, TemporaryProducer

MEMBER = Path(__file__).parent / "group_member.py"
#: Never reached when all is well.
PATIENCE = 300.0
VBUCKETS = 8
#: Long enough that a member on a busy machine rarely loses it.
LEASE = 6.0


# ---- stores ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, GroupStore]]:
    with (
        s3_server() as variables,
        pytest.MonkeyPatch.context() as patched,
        TemporaryProducer(vbuckets=VBUCKETS) as producer,
    ):
        for name, value in variables.items():
            patched.setenv(name, value)
        made: dict[str, GroupStore] = {
            "directory": DirectoryGroupStore(tmp_path_factory.mktemp("groups") / "new"),
            "objects": ObjectGroupStore(f"s3://{BUCKET}/groups"),
            "bucket": BucketGroupStore(producer.source),
        }
        yield made
        for store in made.values():
            store.close()


@pytest.mark.parametrize("kind", ["directory", "objects", "bucket"])
def test_a_store_lets_one_writer_replace_a_version(
    stores: dict[str, GroupStore], kind: str
) -> None:
    store = stores[kind]
    assert store.read("g/cell") is None
    first = store.write("g/cell", b'{"n": 1}', 0)
    assert first is not None
    assert store.read("g/cell") == Stored(b'{"n": 1}', first)
    assert store.write("g/cell", b'{"n": 2}', 0) is None
    second = store.write("g/cell", b'{"n": 2}', first, expires=600)
    assert second is not None
    assert store.write("g/cell", b'{"n": 3}', first) is None
    assert store.read("g/cell") == Stored(b'{"n": 2}', second)
    store.remove("g/cell")
    store.remove("g/cell")
    assert store.read("g/cell") is None
    # whoever was paused since then has not written anything
    assert store.write("g/cell", b'{"n": 3}', second) is None
    assert store.read("g/cell") is None


@pytest.mark.parametrize("kind", ["directory", "objects", "bucket"])
def test_writers_at_the_same_time_lose_no_change(stores: dict[str, GroupStore], kind: str) -> None:
    store = stores[kind]

    def count(times: int) -> None:
        while times:
            stored = store.read("g/count")
            number = int(json.loads(stored.content)["n"]) if stored is not None else 0
            version = stored.version if stored is not None else 0
            if store.write("g/count", json.dumps({"n": number + 1}).encode(), version):
                times -= 1

    writers = [threading.Thread(target=count, args=(10,)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    counted = store.read("g/count")
    assert counted is not None
    # a store of files may also refuse a write that was done
    assert json.loads(counted.content)["n"] >= 30


def test_a_writer_that_was_paused_for_long_does_not_write(tmp_path: Path) -> None:
    store = DirectoryGroupStore(tmp_path)
    for version in range(5):
        assert store.write("g/cell", b"%d" % version, version) == version + 1
    assert len(list((tmp_path / "g/cell").iterdir())) == 2  # older ones are gone, so this could be
    for version in range(5):
        assert store.write("g/cell", b"late", version) is None
    assert store.read("g/cell") == Stored(b"4", 5)


def test_stores_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="begins with"):
        ObjectGroupStore("ftp://somewhere/else")
    with pytest.raises(ConfigError, match=r"SCOPE\.NAME"):
        BucketGroupStore("couchbase://localhost/default", collection="nonsense")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConnectionFailed, match="cannot be written"):
        DirectoryGroupStore(tmp_path / "file").write("g/cell", b"", 0)


# ---- members in this process -------------------------------------------------------------


class Reader:
    """A member in a thread: keeps what it was given."""

    def __init__(self, source: str, members: Any, **options: Any) -> None:
        self.changes: list[Change] = []
        self.vbuckets: set[int] = set()
        self.revocations: list[Revocation] = []
        self.rollbacks = 0
        self._stop = threading.Event()
        self._consumer = Consumer(
            source,
            group="readers",
            members=members,
            on_assigned=self.vbuckets.update,
            on_revoked=self._revoked,
            **{"lease": LEASE, "retry_first": 0.01, **options},
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reader:
        self._consumer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _revoked(self, revocation: Revocation) -> None:
        self._consumer.save()
        self.vbuckets -= revocation.vbuckets
        self.revocations.append(revocation)

    def _run(self) -> None:
        from upriver.consumer.changes import changes_of

        while not self._stop.is_set():
            event = self._consumer.poll(0.05)
            if isinstance(event, Rows):
                self.changes += changes_of(event.batch)
            elif event is not None and type(event).__name__ == "RolledBack":
                self.rollbacks += 1
            self._consumer.save()


def keys_of(*readers: Reader) -> set[bytes]:
    return {change.key for reader in readers for change in list(reader.changes)}


@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_members_share_a_bucket_and_hand_over(kind: str, tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        members = tmp_path if kind == "directory" else None
        written: set[bytes] = set()

        def write() -> None:
            for _ in range(50):
                written.add(b"key:%d" % len(written))
                producer.write(b"key:%d" % (len(written) - 1), b"{}")

        write()
        with Reader(producer.source, members) as a:
            until(lambda: keys_of(a) == written)
            assert len(a.vbuckets) == VBUCKETS
            with Reader(producer.source, members) as b:
                until(lambda: len(a.vbuckets) == len(b.vbuckets) == VBUCKETS // 2)
                assert not a.vbuckets & b.vbuckets
                write()
                until(lambda: keys_of(a, b) == written)
            write()
            until(lambda: keys_of(a, b) == written and len(a.vbuckets) == VBUCKETS)
        # whoever comes later goes on where the group was
        write()
        with Reader(producer.source, members) as c:
            until(lambda: keys_of(a, b, c) == written)
            assert len(keys_of(c)) == 50


def test_async_members_share_a_bucket_and_hand_over(tmp_path: Path) -> None:
    async def read(consumer: AsyncConsumer, seen: set[bytes]) -> None:
        async for change in consumer:
            seen.add(change.key)

    async def main(source: str) -> None:
        revoked: list[Revocation] = []

        async def on_revoked(revocation: Revocation) -> None:
            await a.save()
            revoked.append(revocation)

        options: Any = {"group": "g", "members": tmp_path, "lease": LEASE}
        first: set[bytes] = set()
        second: set[bytes] = set()
        async with AsyncConsumer(source, on_revoked=on_revoked, **options) as a:
            reading = asyncio.create_task(read(a, first))
            while len(first) < 20:
                await asyncio.sleep(0.02)
            async with AsyncConsumer(source, **options) as b:
                more = asyncio.create_task(read(b, second))
                while not revoked:
                    await asyncio.sleep(0.02)
                for number in range(20, 60):
                    producer.write(b"key:%d" % number, b"{}")
                while len(first | second) < 60 or not second:
                    await asyncio.sleep(0.02)
            await more
        await reading
        assert len(revoked[0].vbuckets) == VBUCKETS // 2
        assert not second & {b"key:%d" % number for number in range(20)}  # saved by the first

    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        for number in range(20):
            producer.write(b"key:%d" % number, b"{}")
        asyncio.run(asyncio.wait_for(main(producer.source), PATIENCE))


def test_a_member_that_others_removed_saves_nothing_and_joins_again(tmp_path: Path) -> None:
    store = DirectoryGroupStore(tmp_path)

    def roster() -> tuple[Roster, int]:
        stored = store.read("readers/roster")
        assert stored is not None
        return Roster.from_json(stored.content), stored.version

    with TemporaryProducer(vbuckets=VBUCKETS) as producer, ExitStack() as stack:
        producer.write(b"key:0", b"{}")
        reader = stack.enter_context(Reader(producer.source, tmp_path))
        until(lambda: len(reader.vbuckets) == VBUCKETS and bool(reader.changes))
        before, version = roster()
        # as a watcher would do it that has not heard of the member for too long
        sealed = None
        while sealed is None:  # a heartbeat may come between
            beat = store.read(f"readers/member-{before.members[0]}")
            assert beat is not None
            cell = f"readers/member-{before.members[0]}"
            sealed = store.write(cell, b'{"sealed": true}', beat.version)
        after = before.without(before.members).joined("another").balanced()
        assert store.write("readers/roster", after.to_json(), version)
        claimed = run_steps(
            store, PositionCells("readers").claim(after.owned_by("another"), lambda vb: Position())
        )
        assert len(claimed) == VBUCKETS
        until(lambda: any(revocation.lost for revocation in reader.revocations))
        former = {*before.members, "another"}
        until(lambda: bool(set(roster()[0].members) - former))
        saved = run_steps(store, PositionCells("readers").load(range(VBUCKETS)))
        assert min(one.generation for one in saved.values()) >= after.generation
        # the other one is never heard of: it is replaced, and reading goes on
        producer.write(b"key:1", b"{}")
        until(lambda: b"key:1" in keys_of(reader))
        assert len(reader.vbuckets) == VBUCKETS


def test_a_rollback_takes_a_groups_position_back(tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=1) as producer:
        for number in range(4):
            producer.write(b"key:%d" % number, b"{}")
        store = DirectoryGroupStore(tmp_path)

        def saved() -> Saved | None:
            found = run_steps(store, PositionCells("readers").load([0]))
            return found.get(0)

        with Reader(producer.source, tmp_path) as reader:
            until(lambda: (one := saved()) is not None and one.position.seqno == 4)
            producer.fail_over(0, 2)
            until(lambda: reader.rollbacks == 1)
            until(lambda: (one := saved()) is not None and one.rollbacks == 1)
            producer.write(b"key:5", b"{}")
            until(lambda: b"key:5" in keys_of(reader))
        end = saved()
        assert end is not None
        assert (end.rollbacks, end.position.seqno) == (1, 3)


class Gate(DirectoryGroupStore):
    """A store that does not answer for a while."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.open = threading.Event()
        self.open.set()

    def write(self, cell: str, content: bytes, version: int, *, expires: float = 0) -> int | None:
        assert self.open.wait(PATIENCE)
        return super().write(cell, content, version, expires=expires)


def test_without_a_lease_nothing_is_delivered(tmp_path: Path) -> None:
    store = Gate(tmp_path)
    options: Any = {"group": "g", "members": store, "lease": 2}
    with TemporaryProducer(vbuckets=1) as producer, Consumer(producer.source, **options) as one:
        changes = iter(one)
        producer.write(b"key:0", b"{}")
        assert next(changes).key == b"key:0"
        group = one._group
        assert group is not None
        store.open.clear()  # no heartbeat is written any more
        until(lambda: not group.may_deliver)
        for number in range(1, 4):
            producer.write(b"key:%d" % number, b"{}")
        assert one.poll(0.5) is None
        store.open.set()
        assert [next(changes).key for _ in range(3)] == [b"key:1", b"key:2", b"key:3"]


@pytest.mark.parametrize("loss", ["unmounted", "emptied"])
def test_a_group_whose_place_vanishes_stops_and_makes_nothing_anew(
    tmp_path: Path, loss: str
) -> None:
    place, away = tmp_path / "mount" / "groups", tmp_path / "away"
    with TemporaryProducer(vbuckets=2) as producer:
        producer.write(b"key:0", b"{}")
        options: Any = {"group": "g", "members": place, "lease": 2}
        with Consumer(producer.source, **options) as one:
            changes = iter(one)
            assert next(changes).key == b"key:0"
            one.save()
            (place.parent if loss == "unmounted" else place).rename(away)
            if loss == "emptied":
                place.mkdir()
            with pytest.raises(ConfigError, match=r"positions-0000 is gone.*another group"):
                next(changes)
            with pytest.raises(ConfigError, match="is gone"):
                one.save()
        assert not list(place.glob("*"))
        left = place.parent if loss == "unmounted" else place
        if left.exists():
            left.rmdir()
        away.rename(left)
        producer.write(b"key:1", b"{}")
        with Consumer(producer.source, **options) as again:
            assert next(iter(again)).key == b"key:1"


class Unreliable(DirectoryGroupStore):
    """A store that fails every second time that somebody changes the roster."""

    attempts = 0

    def write(self, cell: str, content: bytes, version: int, *, expires: float = 0) -> int | None:
        if cell.endswith("/roster"):
            self.attempts += 1
            if self.attempts % 2 == 0:
                raise ConnectionFailed("cannot be written now", "try again", where="the store")
        return super().write(cell, content, version, expires=expires)


def test_a_store_that_fails_now_and_then_only_delays(tmp_path: Path) -> None:
    store = Unreliable(tmp_path)
    with TemporaryProducer(vbuckets=2) as producer, Reader(producer.source, store) as a:
        until(lambda: len(a.vbuckets) == 2)
        with Reader(producer.source, tmp_path) as b:
            # the first attempt of the other to let a vbucket go fails
            until(lambda: len(a.vbuckets) == len(b.vbuckets) == 1)
            assert store.attempts >= 3


def test_callbacks_that_fail_leave_no_vbucket_behind(tmp_path: Path) -> None:
    def fail(what: object) -> None:
        raise ValueError("a mistake of the application")

    options: Any = {"group": "g", "members": tmp_path, "lease": LEASE}
    failing: Any = {"on_assigned": fail, "on_revoked": fail, **options}
    with TemporaryProducer(vbuckets=2) as producer, Consumer(producer.source, **failing) as one:
        with pytest.raises(ValueError, match="a mistake"):
            one.poll(PATIENCE)
        for vbucket in range(2):
            producer.write(b"key:%d" % vbucket, b"{}", vbucket=vbucket)
        changes = iter(one)
        assert {next(changes).key for _ in range(2)} == {b"key:0", b"key:1"}
        with Consumer(producer.source, **options) as other:
            with pytest.raises(ValueError, match="a mistake"):
                next(changes)
            # it has let one vbucket go all the same, and did not save
            assert next(iter(other)).key in {b"key:0", b"key:1"}


def test_a_member_that_has_failed_lets_vbuckets_go(tmp_path: Path) -> None:
    options: Any = {"group": "readers", "members": tmp_path, "lease": LEASE}
    revoked: list[Revocation] = []
    with TemporaryProducer(vbuckets=2) as producer:
        for number in range(4):
            producer.write(b"key:%d" % number, b"{}", vbucket=0)
        strict: Any = {"rollback": RollbackPolicy.FAIL, "on_revoked": revoked.append}
        with Consumer(producer.source, **strict, **options) as failing:
            changes = iter(failing)
            assert next(changes).key == b"key:0"
            producer.fail_over(0, 2)
            with pytest.raises(RollbackRequired):
                list(changes)
            with Reader(producer.source, tmp_path) as other:

                def asked_again() -> bool:
                    with pytest.raises(RollbackRequired):
                        failing.poll(0.05)
                    return bool(other.vbuckets)

                until(asked_again)
                assert revoked
                assert revoked[0].vbuckets >= other.vbuckets


def test_members_can_wait_until_changes_are_persisted(tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        for number in range(50):
            producer.write(b"key:%d" % number, b"{}")
        with (
            Reader(producer.source, tmp_path, persisted_everywhere=0.05) as a,
            Reader(producer.source, tmp_path, persisted_everywhere=0.05) as b,
        ):
            until(lambda: len(a.vbuckets) == len(b.vbuckets) == VBUCKETS // 2)
            for number in range(50, 100):
                producer.write(b"key:%d" % number, b"{}")
            until(lambda: len(keys_of(a, b)) == 100)


def test_a_new_group_can_start_now(tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        producer.write(b"before", b"{}")
        with Reader(producer.source, tmp_path, start="now") as reader:
            until(lambda: len(reader.vbuckets) == VBUCKETS)
        producer.write(b"between", b"{}")
        with Reader(producer.source, tmp_path, start="now") as reader:
            until(lambda: keys_of(reader) == {b"between"})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"group": "no/slash"}, "letters, digits"),
        ({"group": "g", "end": "now"}, "leave end out"),
        ({"group": "g", "vbuckets": frozenset({1})}, "leave vbuckets out"),
        ({"group": "g", "rollback": RollbackPolicy.STOP}, "choose REWIND, FAIL or IGNORE"),
        ({"group": "g", "checkpoint": MemoryCheckpoint()}, "leave checkpoint out"),
        ({"members": "somewhere"}, "give its name"),
        ({"group": "g", "members": "ftp://somewhere"}, "no object store"),
    ],
)
def test_what_a_member_cannot_have_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Consumer("couchbase://localhost/default", **options)


def test_a_member_of_another_kind_is_refused(tmp_path: Path) -> None:
    with (
        TemporaryProducer(vbuckets=VBUCKETS) as producer,
        Reader(producer.source, tmp_path),
        pytest.raises(ConfigError, match="leases of 6 s"),
    ):
        Consumer(producer.source, group="readers", members=tmp_path, lease=3).start()


def test_members_that_meet_in_the_bucket_go_on_through_failovers() -> None:
    with TemporaryCluster() as cluster, ExitStack() as stack:
        written: set[bytes] = set()

        def write() -> None:
            for _ in range(100):
                key = b"key:%d" % len(written)
                cluster.write(key, b"{}")
                written.add(key)

        write()
        a, b = (stack.enter_context(Reader(cluster.source, None)) for _ in range(2))
        until(lambda: keys_of(a, b) >= written)
        for node in ("n1", "n2"):
            cluster.kill(node)
            cluster.fail_over(node)
            write()
            until(lambda: keys_of(a, b) >= written)
            cluster.recover(node)
            cluster.rebalance()
            write()
            until(lambda: keys_of(a, b) >= written)
            until(lambda: len(a.vbuckets) + len(b.vbuckets) == 16)
        # whatever a failover has lost of the group, it is a group again
        until(lambda: len(a.vbuckets) == len(b.vbuckets) == 8)


# ---- members that are killed and paused --------------------------------------------------


class Watch(threading.Thread):
    """Reads the cells of a group all the time and checks what must always be true of them."""

    def __init__(self, store: GroupStore) -> None:
        super().__init__()
        self._store = store
        self._owners: dict[tuple[int, int], str] = {}
        self._saved: dict[int, Saved] = {}
        self.members: tuple[str, ...] = ()
        self.problems: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            stored = self._store.read("chaos/roster")
            if stored is not None:
                self._check(Roster.from_json(stored.content))

    def _check(self, roster: Roster) -> None:
        self.members = roster.members
        for vb, holding in enumerate(roster.holdings):
            owner = self._owners.setdefault((vb, holding.generation), holding.owner)
            if holding.owner and owner and owner != holding.owner:
                self.problems.append(f"{vb} has two owners at {holding.generation}")
        for vb, saved in run_steps(self._store, PositionCells("chaos").load(range(64))).items():
            before = self._saved.get(vb, saved)
            if (saved.rollbacks, saved.position.seqno) < (before.rollbacks, before.position.seqno):
                self.problems.append(f"{vb} went back from {before} to {saved}")
            self._saved[vb] = saved


def delivered(outputs: list[Path]) -> set[tuple[int, int]]:
    found = set()
    for output in outputs:
        text = output.read_text() if output.exists() else ""
        for line in text[: text.rfind("\n") + 1].splitlines():
            what, seqno = json.loads(line)
            if isinstance(what, int):
                found.add((what, int(seqno)))
    return found


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        ("directory", 6),
        pytest.param("directory", 40, marks=pytest.mark.release),
        pytest.param("objects", 40, marks=pytest.mark.release),
        pytest.param("bucket", 40, marks=pytest.mark.release),
    ],
)
def test_every_change_is_delivered_while_members_die_pause_and_come(
    kind: str, rounds: int, stores: dict[str, GroupStore], tmp_path: Path
) -> None:
    chance = random.Random(5)
    store = stores[kind]
    outputs: list[Path] = []
    running: list[subprocess.Popen[bytes]] = []
    written: set[tuple[int, int]] = set()

    def start() -> None:
        outputs.append(tmp_path / f"told-{len(outputs)}")
        running.append(
            subprocess.Popen([sys.executable, MEMBER, producer.source, place, outputs[-1], "2"])
        )

    def write() -> None:
        number = 0
        while not over.wait(0.01):
            number += 1
            vbucket = number % VBUCKETS
            done = producer.write(b"key:%d" % number, b"{}", vbucket=vbucket)
            written.add((vbucket, done.seqno))

    over = threading.Event()
    # the store of a bucket is that of another server here, whose address is in its name
    place = str(store).partition(" ")[0]
    store.remove("chaos/roster")
    store.remove("chaos/positions-0000")
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        writer, watch = threading.Thread(target=write), Watch(store)
        writer.start()
        watch.start()
        try:
            for _ in range(3):
                start()
            for _ in range(rounds):
                time.sleep(chance.uniform(0.3, 1.5))
                what = chance.choice(["kill", "pause", "start", "stop"])
                if what == "start" and len(running) < 4:
                    start()
                elif what == "pause":
                    paused = chance.choice(running)
                    paused.send_signal(signal.SIGSTOP)
                    time.sleep(chance.uniform(0.5, 4.0))
                    paused.send_signal(signal.SIGCONT)
                elif len(running) > 1:
                    gone = running.pop(chance.randrange(len(running)))
                    gone.send_signal(signal.SIGKILL if what == "kill" else signal.SIGINT)
                    gone.wait(PATIENCE)
            over.set()
            writer.join()
            until(lambda: written <= delivered(outputs))
            until(lambda: len(watch.members) == len(running))
        finally:
            over.set()
            watch.over.set()
            for process in running:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
            watch.join()
    assert watch.problems == []
