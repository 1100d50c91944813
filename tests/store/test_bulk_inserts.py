"""The short way for bulk loads leaves the store as the rules for single changes would."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storekit import QUIET, Clock, split

from upriver.errors import StoreRefusal
from upriver.model import VBucketState
from upriver.store import AddDocument, Applied, Bucket, DeleteDocument, SetDocument, Store
from upriver.store.writes import operations
from upriver.store.writes.change_requests import ChangeRequest, Outcome
from upriver.store.writes.write_group import WriteGroup
from upriver.wire import canonical

_CAS_AT = slice(16, 24)

keys = st.one_of(
    st.sampled_from([b"\0a", b"\0b", b"\0c", b"\0d", b"\x08a", b"\x08b"]),
    st.sampled_from([b"", b"\0", b"\x07k", b"\x80", b"\0" + b"k" * 249, b"\0" + b"k" * 300]),
    st.binary(min_size=2, max_size=4).map(lambda tail: b"\0" + tail),
)
sets = st.builds(
    SetDocument,
    st.sampled_from([0, 0, 0, 1, 2, 3, 4, 2**40]),
    keys,
    st.one_of(st.binary(max_size=9), st.just(bytes(1001))),
    st.sampled_from([0, 0, 7, 2**32 - 1, 2**32, -1]),
    st.sampled_from([0, 0, 0, 0, 100, 2**33, -1]),
    st.sampled_from([0, 0, 1, 1, 4, -1, 255]),
    st.sampled_from([0, 0, 0, 0, 9]),
)
others = st.one_of(
    st.builds(AddDocument, st.just(0), keys, st.binary(max_size=3)),
    st.builds(DeleteDocument, st.just(0), keys),
)
#: Below and above the number from which all keys are looked up at once.
groups = st.lists(
    st.one_of(
        st.lists(st.one_of(sets, sets, others), max_size=8),
        st.lists(sets, min_size=16, max_size=24),
    ),
    min_size=1,
    max_size=3,
)


def one_by_one(
    group: WriteGroup, changes: Sequence[ChangeRequest], outcomes: list[Outcome]
) -> Iterator[ChangeRequest]:
    """No change takes the short way."""
    yield from changes


@contextmanager
def bucket_in(path: Path) -> Iterator[Bucket]:
    with Store(path, wall=Clock()) as store:
        bucket = store.create_bucket("b", replace(QUIET, max_value=1000))
        bucket.create_collection(0, "c")
        bucket.set_state(3, VBucketState.REPLICA)
        yield bucket
        assert bucket.verify() == []


def outcome_of(outcome: Outcome) -> tuple[object, ...]:
    """What matters of an outcome: CAS values are the clock's business."""
    if isinstance(outcome, StoreRefusal):
        return (outcome.status, outcome.rule)
    assert isinstance(outcome, Applied)
    return (outcome.vbucket, outcome.seqno)


def state_of(bucket: Bucket) -> list[object]:
    """All frames and records but for their CAS, and every count."""
    found: list[object] = []
    for vbucket in range(4):
        with bucket.open_reader(vbucket) as reader:
            frames = [frame for chunk in reader for frame in split(chunk.frames)]
        found += [frame[:16] + bytes(8) + frame[24:] for frame in frames]
        stats = bucket.vbucket_stats(vbucket)
        found.append((stats.items, stats.tombstones, stats.high_seqno, stats.history_bytes))
        found.append(bucket.collection_seqnos(vbucket))
        if vbucket == 3:
            continue
        for frame in frames:
            if canonical.is_event(frame):
                continue
            at = 24 + frame[4]
            key = frame[at : at + int.from_bytes(frame[2:4])]
            record = bucket.meta(vbucket, key)
            assert record.cas == int.from_bytes(frame[_CAS_AT])
            found.append(record._replace(cas=0))
    return found


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(groups)
def test_bulk_inserts_are_what_single_changes_are(loads: list[list[ChangeRequest]]) -> None:
    results = []
    for short_way in (True, False):
        with (
            tempfile.TemporaryDirectory() as home,
            bucket_in(Path(home) / "store") as bucket,
            pytest.MonkeyPatch.context() as patch,
        ):
            if not short_way:
                patch.setattr(operations, "insert_plain", one_by_one)
            outcomes = [outcome for load in loads for outcome in bucket.write_many(load)]
            cas = [x.cas for x in outcomes if isinstance(x, Applied)]
            assert cas == sorted(set(cas))
            results.append(([outcome_of(x) for x in outcomes], state_of(bucket)))
    assert results[0] == results[1]
