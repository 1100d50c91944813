"""Random histories, compared after each step with a plain dictionary that was told the same."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path as FilePath

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from storekit import SECOND, Clock, dump, key
from storemodel import HISTORY_AGE, PURGE_AGE, Path, VBucketModel, Version, is_live, prepared

from examples import examples
from upriver.errors import Status, StoreRefusal
from upriver.model import VBucketState
from upriver.store import (
    AbortPrepared,
    AddDocument,
    AppendToDocument,
    Applied,
    BeginSnapshot,
    BucketSettings,
    ChangeRequest,
    CommitPrepared,
    Counter,
    DeleteDocument,
    Outcome,
    PrepareWrite,
    ReplaceDocument,
    Replicate,
    ReplicateAbort,
    ReplicateCommit,
    SetDocument,
    Store,
    TouchDocument,
)
from upriver.wire import canonical, stored_prepares
from upriver.wire import messages as m
from upriver.wire.stored_prepares import StoredPrepare

SETTINGS = BucketSettings(
    vbuckets=2, maintenance_interval=0, history_age=HISTORY_AGE, purge_age=PURGE_AGE
)
VBUCKETS = st.integers(0, 1)
NAMES = st.sampled_from([b"a", b"b", b"c"])
VALUES = st.sampled_from([b"1", b"22", b"x"])
EXPIRIES = st.sampled_from([0, 0, 0, 5, 50])
OPERATIONS = st.sampled_from(
    [
        SetDocument,
        SetDocument,
        AddDocument,
        ReplaceDocument,
        AppendToDocument,
        Counter,
        TouchDocument,
        DeleteDocument,
        DeleteDocument,
    ]
)


class StoreMachine(RuleBasedStateMachine):
    """Two vbuckets, three keys, up to three collections, and everything that can happen."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.path = FilePath(tempfile.mkdtemp(prefix="upriver-model-"))
        self.store = Store(self.path, wall=self.clock)
        self.bucket = self.store.create_bucket("b", SETTINGS)
        self.model = [VBucketModel(), VBucketModel()]
        self.manifest: list[int] = []
        self.last_cas = 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.path)

    @property
    def now(self) -> int:
        return self.clock.seconds

    # ---- what clients do -----------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        assert self.bucket.stats().items == 0

    @rule(data=st.data(), size=st.integers(1, 4))
    def write_group(self, data: st.DataObject, size: int) -> None:
        changes = [self.draw_change(data) for _ in range(size)]
        for change, outcome in zip(changes, self.bucket.write_many(changes), strict=True):
            self.follow(change, outcome)

    @rule(data=st.data())
    def write_one(self, data: st.DataObject) -> None:
        change = self.draw_change(data)
        self.follow(change, self.bucket.submit([change]).result()[0])

    def draw_change(self, data: st.DataObject) -> ChangeRequest:
        kind = data.draw(OPERATIONS)
        vbucket, name = data.draw(VBUCKETS), data.draw(NAMES)
        collection = data.draw(st.sampled_from([0, 0, 8, *self.manifest]))
        there = self.model[vbucket].here.get((collection, name))
        right = there.cas if there is not None else 5
        cas = data.draw(st.sampled_from([0, 0, right, 7]))
        where = key(name.decode(), collection)
        if kind is Counter:
            initial = data.draw(st.sampled_from([None, 3]))
            return Counter(vbucket, where, data.draw(st.sampled_from([1, -5])), initial, cas=cas)
        if kind is TouchDocument:
            return TouchDocument(vbucket, where, data.draw(EXPIRIES))
        if kind is DeleteDocument:
            return DeleteDocument(vbucket, where, cas)
        if kind is AppendToDocument:
            return AppendToDocument(vbucket, where, data.draw(VALUES), cas)
        value, flags, expiry = data.draw(VALUES), data.draw(st.integers(0, 2)), data.draw(EXPIRIES)
        if kind is AddDocument:
            return AddDocument(vbucket, where, value, flags, expiry)
        return (SetDocument if kind is SetDocument else ReplaceDocument)(
            vbucket, where, value, flags, expiry, cas=cas
        )

    def follow(self, change: ChangeRequest, outcome: Outcome) -> None:
        """Does to the model what was done to the store, and compares what both say."""
        expected = self.expected(change)
        if isinstance(expected, Status):
            assert isinstance(outcome, StoreRefusal)
            assert outcome.status is expected
            return
        assert isinstance(outcome, Applied), outcome
        path, version, number = expected
        if isinstance(change, PrepareWrite):
            path, op = prepared(path), "Q" if version.op == "D" else "P"
            version = version._replace(op=op)
        assert (outcome.seqno, outcome.number) == (version.seqno, number)
        if version == self.model[change.vbucket].here.get(path):
            assert outcome.cas == version.cas  # it was so already, and nothing was written
            return
        self.take_cas(outcome.cas)
        self.model[change.vbucket].write(path, version._replace(cas=outcome.cas), self.now)

    def take_cas(self, cas: int) -> None:
        assert cas > self.last_cas
        self.last_cas = cas

    @rule(data=st.data(), level=st.integers(1, 3))
    def prepare(self, data: st.DataObject, level: int) -> None:
        change = self.draw_change(data)
        durable = PrepareWrite(change.vbucket, change, level)  # type: ignore[arg-type]
        self.follow(durable, self.bucket.write_many([durable])[0])

    @precondition(lambda self: any(vbucket.prepares() for vbucket in self.model))
    @rule(data=st.data(), commits=st.booleans())
    def complete(self, data: st.DataObject, commits: bool) -> None:
        vbucket = data.draw(st.sampled_from([n for n in (0, 1) if self.model[n].prepares()]))
        model = self.model[vbucket]
        path, version = data.draw(st.sampled_from(model.prepares()))
        kind = CommitPrepared if commits else AbortPrepared
        (outcome,) = self.bucket.write_many([kind(vbucket, where(path), version.seqno)])
        if not model.active or (commits and path[0] not in (0, *self.manifest)):
            assert isinstance(outcome, StoreRefusal)
            return
        assert isinstance(outcome, Applied)
        assert outcome.seqno == model.high + 1
        self.complete_model(model, path, version, outcome.seqno, commits=commits)
        assert outcome.cas == version.cas

    def complete_model(
        self, model: VBucketModel, path: Path, version: Version, seqno: int, *, commits: bool
    ) -> None:
        if commits:
            done = version._replace(op="D" if version.op == "Q" else "M", seqno=seqno)
            model.write(path, done, self.now)
        else:
            given_up = Version("A", seqno, value=b"%d" % version.seqno)
            model.write(prepared(path), given_up, self.now)
            model.aborted_at[seqno] = version.cas // SECOND

    def expected(self, change: ChangeRequest) -> Status | tuple[Path, Version, int | None]:
        durable = isinstance(change, PrepareWrite)
        if isinstance(change, PrepareWrite):
            change = change.change
        vbucket = self.model[change.vbucket]
        collection, name = change.key[0], change.key[1:]  # type: ignore[union-attr]
        if not vbucket.active:
            return Status.NOT_MY_VBUCKET
        if collection and collection not in self.manifest:
            return Status.UNKNOWN_COLLECTION
        path = (collection, name)
        if vbucket.is_pending(path):
            return Status.SYNC_WRITE_IN_PROGRESS
        old = vbucket.here.get(path)
        live = old if is_live(old, self.now) else None
        if live is None:
            if isinstance(change, AppendToDocument):
                return Status.NOT_STORED
            if isinstance(change, ReplaceDocument | DeleteDocument | TouchDocument) or bool(
                getattr(change, "cas", 0)
            ):
                return Status.NOT_FOUND
            if isinstance(change, Counter) and change.initial is None:
                return Status.NOT_FOUND
        elif isinstance(change, AddDocument) or getattr(change, "cas", 0) not in (0, live.cas):
            return Status.EXISTS
        new = Version("M", vbucket.high + 1, vbucket.next_rev(path))
        if isinstance(change, SetDocument | AddDocument | ReplaceDocument):
            time = change.expiry + self.now if change.expiry else 0
            return path, new._replace(value=change.value, flags=change.flags, time=time), None
        if isinstance(change, DeleteDocument):
            return path, new._replace(op="D", time=self.now), None
        if isinstance(change, Counter) and live is None:
            assert change.initial is not None
            return path, new._replace(value=b"%d" % change.initial), change.initial
        assert live is not None
        new = new._replace(value=live.value, flags=live.flags, time=live.time)
        if isinstance(change, TouchDocument):
            time = change.expiry + self.now if change.expiry else 0
            return (
                path,
                live if time == live.time and not durable else new._replace(time=time),
                None,
            )
        if isinstance(change, AppendToDocument):
            return path, new._replace(value=live.value + change.value), None
        assert isinstance(change, Counter)
        if not live.value.isdigit() or int(live.value) >= 2**64:
            return Status.BAD_DELTA
        number = max(int(live.value) + change.delta, 0) % 2**64
        return path, new._replace(value=b"%d" % number), number

    @rule(vbucket=VBUCKETS, name=NAMES)
    def read(self, vbucket: int, name: bytes) -> None:
        model = self.model[vbucket]
        version = model.here.get((0, name))
        try:
            document = self.bucket.get(vbucket, key(name.decode()))
        except StoreRefusal as refusal:
            if model.active and prepared((0, name)) in model.doubted:
                assert refusal.status is Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS
                return
            assert refusal.status is (Status.NOT_FOUND if model.active else Status.NOT_MY_VBUCKET)
            assert not model.active or not is_live(version, self.now)
        else:
            assert version is not None
            assert is_live(version, self.now)
            assert (document.seqno, document.value) == (version.seqno, version.value)
            return
        self.bucket.submit([]).result()  # an expiration that it caused comes before this
        expires = version is not None and version.op == "M" and not model.is_pending((0, name))
        if model.active and expires:
            model.bury((0, name), "X", self.bucket.meta(vbucket, key(name.decode())).cas, self.now)

    # ---- time and maintenance ------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 10, 60, 600, HISTORY_AGE, PURGE_AGE]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def expire(self) -> None:
        self.bucket.expire()
        self.expire_model()

    def expire_model(self) -> None:
        for number, vbucket in enumerate(self.model):
            if vbucket.active:
                for path in vbucket.due(self.now, self.manifest):
                    vbucket.bury(path, "X", 0, self.now)
                self.copy_cas(number)

    def copy_cas(self, vbucket: int) -> None:
        """Takes over the CAS of expirations, which only the store knows."""
        model = self.model[vbucket]
        by_seqno = {one.seqno: one.cas for one in dump(self.bucket, vbucket) if is_document(one)}
        for seqno, state in model.states.items():
            model.states[seqno] = {
                path: version._replace(cas=by_seqno[version.seqno])
                if version.op == "X" and version.cas == 0 and version.seqno in by_seqno
                else version
                for path, version in state.items()
            }
        model.here = model.states[model.high]

    @rule()
    def compact(self) -> None:
        self.bucket.compact()
        self.expire_model()
        for vbucket in self.model:
            vbucket.compact(self.now)

    # ---- the ends of sessions ------------------------------------------------------------

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if not clean:
            self.bucket._core._mark_session = lambda **_: None  # type: ignore[method-assign]
        self.store.close()
        self.store = Store(self.path, wall=self.clock)
        self.bucket = self.store.bucket("b")
        for model in self.model:
            model.doubt()

    # ---- history and states --------------------------------------------------------------

    @rule(vbucket=VBUCKETS, data=st.data())
    def roll_back(self, vbucket: int, data: st.DataObject) -> None:
        model = self.model[vbucket]
        seqno = data.draw(st.integers(0, model.high + 1))
        reached = self.bucket.rollback(vbucket, seqno)
        assert reached == model.roll_back(seqno, self.manifest, self.now)

    @rule(vbucket=VBUCKETS)
    def demote(self, vbucket: int) -> None:
        model = self.model[vbucket]
        self.bucket.set_state(vbucket, VBucketState.REPLICA)
        if model.active:
            model.active = False
            model.settle(model.high)

    @rule(vbucket=VBUCKETS, transfer=st.booleans())
    def promote(self, vbucket: int, transfer: bool) -> None:
        model = self.model[vbucket]
        self.bucket.set_state(vbucket, VBucketState.ACTIVE, transfer=transfer)
        if not model.active:
            model.active = True
            if not transfer:
                model.promote()
                model.doubt()
            model.settle(model.high)
            model.align(self.manifest, self.now)

    @precondition(lambda self: not all(vbucket.active for vbucket in self.model))
    @rule(data=st.data(), whole=st.booleans())
    def replicate(self, data: st.DataObject, whole: bool) -> None:
        vbucket = data.draw(st.sampled_from([n for n in (0, 1) if not self.model[n].active]))
        model = self.model[vbucket]
        gaps = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        end = model.high + sum(gaps) + (0 if whole else 1)
        changes: list[ChangeRequest] = [BeginSnapshot(vbucket, model.high + 1, end)]
        model.whole_before, model.snapshot_end = model.whole(), end
        seqno = model.high
        for gap in gaps:
            seqno += gap
            collection, name = data.draw(st.sampled_from([0, *self.manifest])), data.draw(NAMES)
            where, cas = key(name.decode(), collection), seqno + 10
            pending = model.pending((collection, name))
            kind = data.draw(st.sampled_from("MDPCA"))
            if kind == "P":
                stored = StoredPrepare(vbucket, seqno, seqno, cas, 0, 0, 0, where, b"p", False, 1)
                changes.append(Replicate(vbucket, stored_prepares.prepare(stored)))
                version = Version("P", seqno, seqno, cas, 0, 0, b"p")
                model.write(prepared((collection, name)), version, self.now)
                continue
            if kind in "CA" and pending is not None:
                complete = ReplicateCommit if kind == "C" else ReplicateAbort
                changes.append(complete(vbucket, where, pending.seqno, seqno))
                commits = kind == "C"
                self.complete_model(model, (collection, name), pending, seqno, commits=commits)
                continue
            if kind in "MC":
                frame = canonical.mutation(vbucket, seqno, seqno, cas, 1, 0, 0, where, b"r")
                version = Version("M", seqno, seqno, cas, 1, 0, b"r")
            else:
                frame = canonical.deletion(vbucket, seqno, seqno, cas, self.now, 0, where)
                version = Version("D", seqno, seqno, cas, 0, self.now)
            changes.append(Replicate(vbucket, frame))
            model.write((collection, name), version, self.now)
        assert all(isinstance(one, Applied) for one in self.bucket.write_many(changes))

    # ---- collections ---------------------------------------------------------------------

    @precondition(lambda self: len(self.manifest) < 3)
    @rule()
    def create_collection(self) -> None:
        collection = self.bucket.create_collection(0, f"c{self.bucket.manifest.next_id}").id
        self.manifest.append(collection)
        for vbucket in self.model:
            if vbucket.active:
                vbucket.write(("event", collection), Version("+", vbucket.high + 1), self.now)

    @precondition(lambda self: self.manifest)
    @rule(data=st.data())
    def drop_collection(self, data: st.DataObject) -> None:
        collection = data.draw(st.sampled_from(self.manifest))
        self.bucket.drop_collection(collection)
        self.manifest.remove(collection)
        for vbucket in self.model:
            if vbucket.active:
                vbucket.write(("event", collection), Version("-", vbucket.high + 1), self.now)

    # ---- the comparison ------------------------------------------------------------------

    @invariant()
    def everything_readable_is_the_same(self) -> None:
        for number, model in enumerate(self.model):
            assert read_back(dump(self.bucket, number)) == sorted(
                ((path, version) for path, version in model.here.items()),
                key=lambda one: one[1].seqno,
            )
            stats = self.bucket.vbucket_stats(number)
            ops = [version.op for version in model.here.values()]
            assert stats.items == ops.count("M")
            hidden = [v.seqno for v in model.here.values() if v.op in "PQA"]
            assert (stats.visible_seqno < model.high) == (model.high in hidden)
            assert {(at, pending.seqno) for at, pending in self.bucket.prepares(number)} == {
                (where(p), v.seqno) for p, v in model.prepares()
            }
            assert stats.tombstones == ops.count("D") + ops.count("X")
            assert (stats.high_seqno, stats.persisted_seqno) == (model.high, model.high)
            assert self.bucket.collection_seqnos(number) == model.highs
            assert stats.purge_seqno == model.purge
            assert stats.history_floor == max(model.floor, model.purge)
            assert [entry.seqno for entry in self.bucket.failover_log(number)] == model.log
        assert self.bucket.verify() == []


def where(path: Path) -> bytes:
    """The key that the store has for a document of the model."""
    collection, name = path
    assert isinstance(collection, int)
    assert isinstance(name, bytes)
    return key(name.decode(), collection)


def is_document(message: m.Message) -> bool:
    return isinstance(message, m.Mutation | m.Deletion)


def read_back(messages: list[m.Message]) -> list[tuple[Path, Version]]:
    """What a stream would tell, in the words of the model."""
    found: list[tuple[Path, Version]] = []
    for one in messages:
        if isinstance(one, m.Mutation):
            version = Version("M", one.seqno, one.rev, one.cas, one.flags, one.expiry, one.value)
            found.append(((one.collection or 0, one.key), version))
        elif isinstance(one, m.Prepare):
            op = "Q" if one.deleted else "P"
            version = Version(op, one.seqno, one.rev, one.cas, one.flags, one.expiry, one.value)
            found.append((prepared((one.collection or 0, one.key)), version))
        elif isinstance(one, m.Abort):
            version = Version("A", one.abort_seqno, value=b"%d" % one.prepared_seqno)
            found.append((prepared((one.collection or 0, one.key)), version))
        elif isinstance(one, m.Deletion):
            op = "X" if isinstance(one, m.Expiration) else "D"
            version = Version(op, one.seqno, one.rev, one.cas, 0, one.delete_time or 0)
            found.append(((one.collection or 0, one.key), version))
        else:
            assert isinstance(one, m.CollectionCreated | m.CollectionDropped)
            op = "+" if isinstance(one, m.CollectionCreated) else "-"
            found.append((("event", one.collection), Version(op, one.seqno)))
    return found


TestStoreAgainstItsModel = StoreMachine.TestCase
TestStoreAgainstItsModel.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
