"""The decision on a stream request: every check, and their order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.errors import Status
from upriver.model import NO_END, FailoverLog, Snapshot, VBucketState
from upriver.session.collection_filter import FilterKind, KnownCollections
from upriver.session.keepalive import ProducerKeepalive
from upriver.session.producer_options import ProducerOptions
from upriver.session.stream_request_checks import (
    Acceptance,
    Decision,
    Policy,
    Refusal,
    RollbackTo,
    VBucketFacts,
    decide,
)
from upriver.wire.messages import StreamRequest
from upriver.wire.protocol_enums import OpenFlag, StreamFlag

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "vectors.json").read_text())[
    "rollback"
]

#: Two branches: A from 0, B from 900; and collections in two scopes.
FACTS = VBucketFacts(
    state=VBucketState.ACTIVE,
    high_seqno=1000,
    persisted_seqno=990,
    failover_log=FailoverLog.of((0xB, 900), (0xA, 0)),
    collections=KnownCollections(0x17, {0: {0, 8}, 9: {10, 11}}),
    collection_seqnos={0: 950, 8: 400, 10: 300, 11: 700},
)
REQUEST = StreamRequest(vbucket=5, start=950, end=NO_END, vbuuid=0xB)


def connection(**changes: Any) -> ProducerOptions:
    options = ProducerOptions(flags=OpenFlag.PRODUCER, keepalive=ProducerKeepalive(now=0.0))
    options.keepalive.enabled = changes.pop("noop", True)
    return replace(options, **changes)


def decided(
    request: StreamRequest = REQUEST, facts: VBucketFacts | None = FACTS, **more: Any
) -> Decision:
    return decide(request, facts, more.pop("options", None) or connection(), **more)


def status(decision: Decision) -> Status | None:
    return decision.status if isinstance(decision, Refusal) else None


def accepted(decision: Decision) -> Acceptance:
    assert isinstance(decision, Acceptance), decision
    return decision


def has_nothing_to_send(decision: Decision) -> bool:
    return accepted(decision).start >= accepted(decision).end


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["desc"])
def test_rollback_cases(case: dict[str, Any]) -> None:
    names = {"A": 0xA, "B": 0xB, "Z": 0x2A}

    def vbuuid(name: object) -> int:
        return names[name] if isinstance(name, str) else int(name)  # type: ignore[call-overload]

    facts = replace(
        FACTS,
        high_seqno=case["high"],
        purge_seqno=case["purge"],
        failover_log=FailoverLog.of(*((vbuuid(name), seqno) for name, seqno in case["table"])),
    )
    purge = case.get("remote_purge", 0)
    options = connection(collections=True)
    request = StreamRequest(
        vbucket=5,
        start=case["start"],
        end=NO_END,
        vbuuid=vbuuid(case["uuid"]),
        snapshot_start=case["ss"],
        snapshot_end=case["se"],
        flags=StreamFlag.STRICT_VBUUID if case.get("strict") else StreamFlag.NONE,
        filter=json.dumps({"purge_seqno": str(purge)}).encode() if purge else b"",
    )
    decision = decide(request, facts, options)
    if case["result"] is None:
        # a request above what there is was never to be rolled back, and is out of range
        assert isinstance(decision, Acceptance) or status(decision) is Status.RANGE
    else:
        assert isinstance(decision, RollbackTo)
        assert decision.seqno == case["result"]


@pytest.mark.parametrize("flags", [0x8, 0x100, 0x200, 0x80000000])
def test_flags_that_nobody_knows(flags: int) -> None:
    assert status(decided(replace(REQUEST, flags=StreamFlag(flags)))) is Status.INVALID


def test_the_first_check_that_fails_answers() -> None:
    """Each step makes one more thing right; the answer moves down the list, one by one."""
    collections = connection(collections=True, noop=False)
    request = StreamRequest(
        vbucket=5,
        start=1200,
        end=100,
        vbuuid=0x2A,
        snapshot_start=1300,
        snapshot_end=1400,
        flags=StreamFlag.NO_VALUE,
        filter=b"not json",
    )
    streams = frozenset({(5, None)})
    steps: list[tuple[Status | None, Decision]] = []

    def step(expected: Status | None, facts: VBucketFacts | None = FACTS, **more: Any) -> None:
        steps.append((expected, decide(request, facts, collections, streams=streams, **more)))

    step(Status.INVALID, None)
    request = replace(request, flags=StreamFlag.NONE)
    step(Status.NOT_MY_VBUCKET, None)
    step(Status.NOT_MY_VBUCKET, replace(FACTS, state=VBucketState.PENDING))
    step(Status.NOT_SUPPORTED)
    collections.keepalive.enabled = True
    step(Status.RANGE)  # start above end
    request = replace(request, end=NO_END)
    step(Status.RANGE)  # outside its snapshot
    request = replace(request, snapshot_start=1200)
    step(Status.INVALID)  # the filter
    request = replace(request, filter=b'{"collections":["77"]}')
    step(Status.UNKNOWN_COLLECTION)
    request = replace(request, filter=b"")
    step(Status.EXISTS)
    streams = frozenset()
    step(None)  # an unknown branch: rollback
    assert type(steps[-1][1]) is RollbackTo
    request = replace(request, start=0, snapshot_start=0, snapshot_end=0, vbuuid=0)
    step(Status.NO_MEMORY, short_of_memory=True)
    step(Status.TEMPORARY_FAILURE, replace(FACTS, first_disk_snapshot=True))
    step(None)
    accepted(steps[-1][1])
    assert [status(decision) for _, decision in steps] == [expected for expected, _ in steps]


@pytest.mark.parametrize(
    ("state", "flags", "served"),
    [
        (VBucketState.ACTIVE, StreamFlag.NONE, True),
        (VBucketState.REPLICA, StreamFlag.NONE, True),
        (VBucketState.REPLICA, StreamFlag.ACTIVE_ONLY, False),
        (VBucketState.PENDING, StreamFlag.NONE, False),
        (VBucketState.DEAD, StreamFlag.NONE, False),
    ],
)
def test_states_that_are_served(state: VBucketState, flags: StreamFlag, served: bool) -> None:
    decision = decided(replace(REQUEST, flags=flags), replace(FACTS, state=state))
    assert isinstance(decision, Acceptance) is served
    assert served or status(decision) is Status.NOT_MY_VBUCKET


def test_an_unknown_branch_goes_further_back_than_a_known_one() -> None:
    assert decided(replace(REQUEST, vbuuid=0x2A)) == RollbackTo(0)
    behind = replace(REQUEST, vbuuid=0xA, start=950)
    assert decided(behind) == RollbackTo(900)


def test_from_latest_and_to_latest() -> None:
    latest = replace(REQUEST, start=3, vbuuid=0, flags=StreamFlag.FROM_LATEST)
    assert accepted(decided(latest)).start == 1000
    assert accepted(decided(latest)).vbuuid == 0xB
    upto = replace(REQUEST, start=0, vbuuid=0, flags=StreamFlag.TO_LATEST)
    everything = connection(collections=True)
    assert accepted(decided(upto, options=everything)).end == 1000
    assert accepted(decided(upto)).end == 950  # a legacy stream has the default collection alone
    both = replace(upto, flags=StreamFlag.TO_LATEST | StreamFlag.FROM_LATEST)
    assert has_nothing_to_send(decided(both, options=everything))
    assert accepted(decided(replace(upto, flags=StreamFlag.DISK_ONLY))).end == 990


def test_an_end_of_zero() -> None:
    assert has_nothing_to_send(decided(replace(REQUEST, start=0, vbuuid=0, end=0)))
    assert status(decided(replace(REQUEST, end=0))) is Status.RANGE
    literal = Policy(end_zero_is_unbounded=True)
    today = replace(REQUEST, end=0, snapshot_start=950, snapshot_end=950)
    assert accepted(decided(today, policy=literal)).end == NO_END
    assert status(decided(replace(REQUEST, end=0), policy=literal)) is Status.RANGE


def test_start_at_end_ends_at_once() -> None:
    assert has_nothing_to_send(decided(replace(REQUEST, end=950)))


def test_noops_are_mandatory_for_xattrs_and_collections_only() -> None:
    xattrs = connection(noop=False, flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS)
    assert status(decided(options=xattrs)) is Status.NOT_SUPPORTED
    accepted(decided(options=xattrs, policy=Policy(noop_mandatory=False)))
    accepted(decided(options=connection(noop=False)))


def test_purged_tombstones() -> None:
    purged = replace(FACTS, purge_seqno=960)
    options = connection(collections=True)
    assert decided(facts=purged, options=options) == RollbackTo(0)
    ignoring = replace(REQUEST, flags=StreamFlag.IGNORE_PURGED)
    accepted(decided(ignoring, purged, options=options))
    accepted(decided(facts=purged))  # a legacy stream has seen all of its collection
    assert decided(replace(REQUEST, start=940), purged) == RollbackTo(0)
    seen = replace(REQUEST, filter=b'{"purge_seqno":"960"}')
    accepted(decided(seen, purged, options=options))
    other = replace(REQUEST, filter=b'{"purge_seqno":"900"}')
    assert decided(other, purged, options=options) == RollbackTo(0)
    quiet = replace(REQUEST, filter=b'{"collections":["8"]}')
    accepted(decided(quiet, purged, options=options))  # none of them can have been ours


def test_a_marker_that_was_lost_with_its_items_is_forgotten() -> None:
    request = replace(REQUEST, start=1000, snapshot_start=1000, snapshot_end=1100)
    assert accepted(decided(request)).snapshot == Snapshot(1000, 1000)


def test_a_replica_ends_with_the_snapshot_it_receives() -> None:
    facts = replace(FACTS, state=VBucketState.REPLICA, receiving=Snapshot(960, 1040))
    assert accepted(decided(replace(REQUEST, end=970), facts)).end == 1040
    assert accepted(decided(replace(REQUEST, end=955), facts)).end == 955
    assert accepted(decided(replace(REQUEST, end=2000), facts)).end == 2000


def test_a_takeover_has_no_end() -> None:
    decision = accepted(decided(replace(REQUEST, end=960, flags=StreamFlag.TAKEOVER)))
    assert (decision.end, decision.takeover) == (NO_END, True)


FILTERS: list[tuple[str, Status | FilterKind]] = [
    ("", FilterKind.EVERYTHING),
    ('{"uid":"17"}', FilterKind.EVERYTHING),
    ('{"uid":"17","unknown":1}', FilterKind.EVERYTHING),
    ('{"uid":"16","collections":["8"]}', FilterKind.COLLECTIONS),
    ('{"uid":"18"}', Status.MANIFEST_AHEAD),
    ('{"uid":"18","collections":["77"]}', Status.UNKNOWN_COLLECTION),
    ('{"uid":17}', Status.INVALID),
    ('{"uid":"x"}', Status.INVALID),
    ('{"uid":"10000000000000000"}', Status.INVALID),
    ('{"collections":["0","8"]}', FilterKind.COLLECTIONS),
    ('{"collections":[]}', FilterKind.COLLECTIONS),
    ('{"scope":"9"}', FilterKind.SCOPE),
    ('{"scope":"0"}', FilterKind.SCOPE),
    ('{"cts":{"all_keys":true}}', FilterKind.EVERYTHING),
    ('{"unknown":1}', Status.INVALID),
    ("{}", Status.INVALID),
    ("[]", Status.INVALID),
    ("{", Status.INVALID),
    ("\x00", Status.INVALID),
    ("[" * 50_000, Status.INVALID),
    ('{"collections":"8"}', Status.INVALID),
    ('{"collections":[8]}', Status.INVALID),
    ('{"collections":["x"]}', Status.INVALID),
    ('{"collections":["-8"]}', Status.INVALID),
    ('{"collections":["100000000"]}', Status.INVALID),
    ('{"collections":["77"]}', Status.UNKNOWN_COLLECTION),
    ('{"scope":"77"}', Status.UNKNOWN_SCOPE),
    ('{"scope":9}', Status.INVALID),
    ('{"scope":"9","collections":["8"]}', Status.INVALID),
    ('{"sid":1}', Status.STREAM_ID_INVALID),
    ('{"sid":0}', Status.STREAM_ID_INVALID),
    ('{"sid":65536}', Status.INVALID),
    ('{"sid":true}', Status.INVALID),
    ('{"purge_seqno":"x"}', Status.INVALID),
    ('{"purge_seqno":7}', Status.INVALID),
    ('{"purge_seqno":"18446744073709551616"}', Status.INVALID),
    ('{"cts":7}', Status.INVALID),
]


@pytest.mark.parametrize(("value", "expected"), FILTERS, ids=[text[:30] for text, _ in FILTERS])
def test_filters(value: str, expected: Status | FilterKind) -> None:
    request = replace(REQUEST, filter=value.encode())
    decision = decided(request, options=connection(collections=True))
    if isinstance(expected, Status):
        assert status(decision) is expected
    else:
        assert accepted(decision).filter.kind is expected


def test_a_refused_collection_names_the_manifest() -> None:
    request = replace(REQUEST, filter=b'{"collections":["77"]}')
    decision = decided(request, options=connection(collections=True))
    assert isinstance(decision, Refusal)
    assert decision.manifest_uid == 0x17


def test_a_manifest_of_a_lost_history_is_rolled_back_first() -> None:
    """Else a reader whose branch is gone would wait for a manifest that never comes."""
    options = connection(collections=True)
    ahead = replace(REQUEST, filter=b'{"uid":"18"}')
    assert isinstance(decided(replace(ahead, vbuuid=0x2A), options=options), RollbackTo)
    decision = decided(ahead, options=options)
    assert isinstance(decision, Refusal)
    assert decision.manifest_uid == 0x17


def test_a_scope_has_the_collections_it_has_now() -> None:
    request = replace(REQUEST, filter=b'{"scope":"9"}')
    wanted = accepted(decided(request, options=connection(collections=True))).filter
    assert (wanted.scope, wanted.collections) == (9, frozenset({10, 11}))


def test_legacy_streams_have_the_default_collection() -> None:
    assert accepted(decided()).filter.collections == {0}
    dropped = replace(FACTS, collections=KnownCollections(3, {0: {8}}))
    assert status(decided(facts=dropped)) is Status.UNKNOWN_COLLECTION
    assert status(decided(replace(REQUEST, filter=b"{}"))) is Status.INVALID


def test_stream_ids_make_several_streams_of_a_vbucket() -> None:
    options = connection(collections=True, stream_ids=True)
    first = replace(REQUEST, filter=b'{"sid":1}')
    assert status(decided(options=options)) is Status.STREAM_ID_INVALID
    assert accepted(decided(first, options=options)).filter.stream_id == 1
    streams = frozenset({(5, 1)})
    assert status(decided(first, options=options, streams=streams)) is Status.EXISTS
    accepted(decided(replace(REQUEST, filter=b'{"sid":2}'), options=options, streams=streams))
    filtered = replace(REQUEST, filter=b'{"collections":["8"]}')
    sync = connection(collections=True, sync_writes=True)
    assert status(decided(filtered, options=sync)) is Status.NOT_SUPPORTED


@given(st.binary(max_size=60))
def test_any_value_is_a_filter_or_a_refusal(value: bytes) -> None:
    decision = decided(replace(REQUEST, filter=value), options=connection(collections=True))
    assert isinstance(decision, Acceptance | RollbackTo | Refusal)
