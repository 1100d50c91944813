"""Faults by chance: the same for the same bytes, where they should be, and beyond doubt."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.errors import ConfigError, DecodeError
from upriver.testing import Faults
from upriver.testing.network_faults import Ending, FaultedChunk, FaultInjector
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Draft002
from upriver.wire.framing import Framer, packet_length
from upriver.wire.header import HEADER_SIZE, MAGICS, parse_header

distances = st.none() | st.integers(1, 400)
all_faults = st.builds(
    Faults,
    cut_every=distances,
    truncate_every=distances,
    corrupt_every=distances,
    corrupt_where=st.sampled_from(["headers", "anywhere"]),
)
packets = st.lists(
    st.builds(
        m.Mutation,
        vbucket=st.integers(0, 3),
        seqno=st.integers(1, 2**64 - 1),
        key=st.binary(min_size=1, max_size=20),
        value=st.binary(max_size=100),
        opaque=st.integers(0, 2**31 - 1),
    ),
    min_size=1,
    max_size=20,
).map(lambda messages: b"".join(map(Dcp().encode, messages)))


def faulted(faults: Faults, stream: bytes, cuts: list[int], seed: str = "seed") -> FaultedChunk:
    """What becomes of a stream that comes in chunks."""
    injector = FaultInjector(seed)
    injector.configure(faults)
    data, corruptions = b"", 0
    for start, end in pairwise([0, *sorted(cut % len(stream) for cut in cuts), len(stream)]):
        part = injector.apply(stream[start:end])
        data += part.data
        corruptions += part.corruptions
        if part.ending is not None:
            return FaultedChunk(data, corruptions, part.ending)
    return FaultedChunk(data, corruptions)


@given(faults=all_faults, stream=packets, cuts=st.lists(st.integers(0, 5000), max_size=30))
def test_chunks_do_not_matter(faults: Faults, stream: bytes, cuts: list[int]) -> None:
    whole = faulted(faults, stream, [])
    again = faulted(faults, stream, cuts)
    assert again == whole


@given(stream=packets, seed=st.text(max_size=5))
def test_without_faults_everything_passes(stream: bytes, seed: str) -> None:
    assert faulted(Faults(), stream, [3, 40], seed) == FaultedChunk(stream)


@given(faults=all_faults, stream=packets)
def test_what_passes_is_a_beginning_but_for_what_was_corrupted(
    faults: Faults, stream: bytes
) -> None:
    data, corruptions, ending, _ = faulted(faults, stream, [])
    different = sum(a != b for a, b in zip(data, stream, strict=False))
    assert different <= corruptions
    assert (len(data) < len(stream)) <= (ending is not None)
    if faults.corrupt_every is None:
        assert corruptions == 0


def test_each_kind_has_numbers_of_its_own() -> None:
    stream = bytes(10_000)
    alone = faulted(Faults(truncate_every=500), stream, [])
    assert alone.ending is Ending.TRUNCATED
    anywhere = Faults(truncate_every=500, corrupt_every=20, corrupt_where="anywhere", delay=1)
    together = faulted(anywhere, stream, [])
    assert len(together.data) == len(alone.data)
    assert together.corruptions > 0


def test_distances_are_averages() -> None:
    lengths = [
        len(faulted(Faults(cut_every=1000), bytes(50_000), [], str(seed)).data)
        for seed in range(400)
    ]
    assert 800 < sum(lengths) / len(lengths) < 1200
    assert len(set(lengths)) > 200


@given(stream=packets, seed=st.integers(0, 10**6).map(str))
def test_a_corrupted_header_is_noticed_at_the_packet_that_has_it(stream: bytes, seed: str) -> None:
    """By its first byte, its length, or an opaque that nobody gave."""
    data, corruptions, *_ = faulted(Faults(corrupt_every=100), stream, [], seed)
    at = 0
    for packet in Framer().feed(stream):
        theirs = data[at : at + len(packet)]
        if theirs != packet:
            assert corruptions
            try:
                assert packet_length(theirs) == len(packet)
            except DecodeError:
                return
            assert parse_header(theirs).opaque >= 2**31
            assert theirs[:12] + packet[12:13] + theirs[13:] == packet
        at += len(packet)


@given(seed=st.integers(0, 10**6).map(str))
def test_headers_of_the_oldest_draft_are_corrupted_as_well(seed: str) -> None:
    packet = Draft002().encode(m.StreamStart(opaque=1, vbucket=3))
    data, corruptions, *_ = faulted(Faults(corrupt_every=1), packet * 5, [7], seed)
    assert corruptions >= 1
    with pytest.raises(DecodeError):
        list(Framer().feed(data))


def test_corruptions_of_headers_come_in_every_kind() -> None:
    packet = Dcp().encode(m.SnapshotMarker(vbucket=1, start=0, end=5, opaque=7))
    seen = set()
    for seed in range(50):
        data = faulted(Faults(corrupt_every=1), packet * 2, [], str(seed)).data[len(packet) :]
        seen |= {at for at in range(HEADER_SIZE) if data[at] != packet[at]}
    assert seen == {0, 8, 12}


def test_what_is_no_packet_is_left_alone() -> None:
    stream = b"\xff" * 5000
    assert faulted(Faults(corrupt_every=10), stream, []) == FaultedChunk(stream)


def test_a_spoilt_magic_begins_no_packet() -> None:
    packet = Dcp().encode(m.StreamNoop(opaque=1))
    for seed in range(100):
        data = faulted(Faults(corrupt_every=1), packet * 2, [], str(seed)).data[len(packet) :]
        assert data[0] == packet[0] or data[0] not in MAGICS | set(range(1, 8))


def test_faults_that_come_later_still_know_where_packets_begin() -> None:
    packet = Dcp().encode(m.Mutation(vbucket=0, seqno=1, key=b"k", value=b"v" * 50, opaque=1))
    injector = FaultInjector("seed")
    stream = packet * 40
    assert injector.apply(stream[:1000]) == FaultedChunk(stream[:1000])
    injector.configure(Faults(corrupt_every=1))
    data, corruptions, *_ = injector.apply(stream[1000:])
    assert corruptions > 10
    wrong = [at for at, byte in enumerate(data, 1000) if byte != stream[at]]
    assert {at % len(packet) for at in wrong} <= {0, 8, 12}


@given(data=st.binary(max_size=300), size=st.integers(1, 20))
def test_fragments_are_small_and_lose_nothing(data: bytes, size: int) -> None:
    injector = FaultInjector("seed")
    injector.configure(Faults(fragment=size))
    pieces = list(injector.fragments(data))
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= size for piece in pieces)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cut_every": 0},
        {"truncate_every": -1},
        {"corrupt_every": 0},
        {"fragment": 0},
        {"delay": -0.1},
        {"corrupt_where": "nowhere"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_impossible_faults_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Faults(**wrong)  # type: ignore[arg-type]
