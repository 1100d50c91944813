"""Offsets: what Spark stores, compares as text and gives back, and what is refused."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.batches.admission import Limits
from upriver.batches.offset_planning import ObservedVBucket, from_beginning, plan
from upriver.batches.offsets import (
    UNTOUCHED,
    Boundary,
    Offset,
    SourceIdentity,
    VBucketProgress,
    most_boundaries,
    thinned,
)
from upriver.errors import ConfigError
from upriver.model import NO_END, FailoverEntry, FailoverLog, Snapshot, StreamOffset

SOURCE = SourceIdentity("travel", "5f1c", 16)
LINE = "1042 b2 c0ffee@900,beef -12+15 -130~131 from:40 purge:2000 rollback"
PROGRESS = VBucketProgress(
    seqno=1042,
    branch=2,
    log=FailoverLog.of((0xC0FFEE, 900), (0xBEEF, 0)),
    boundaries=(Boundary(912, 914), Boundary(1030, 1045)),
    origin=40,
    purge_seqno=2000,
    rolled_back=True,
)

U64 = st.integers(0, NO_END)


@st.composite
def any_progress(draw: st.DrawFn) -> VBucketProgress:
    places = sorted(draw(st.sets(U64, min_size=2, max_size=most_boundaries(1) + 2)))
    began = sorted(draw(st.lists(U64, min_size=1, max_size=3)), reverse=True)
    boundaries: list[Boundary] = []
    for place in places[1:-1]:
        least = max(place, boundaries[-1].bound) if boundaries else place
        boundaries.append(Boundary(place, draw(st.integers(least, NO_END))))
    return VBucketProgress(
        seqno=places[-1],
        branch=draw(U64),
        log=FailoverLog(tuple(FailoverEntry(draw(U64), seqno) for seqno in began)),
        boundaries=tuple(boundaries),
        origin=places[0],
        purge_seqno=draw(U64),
        rolled_back=draw(st.booleans()),
    )


def stored(**changes: object) -> dict[str, object]:
    return {**Offset(SOURCE, {7: PROGRESS}).to_dict(), **changes}


# ---- there and back ----------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 15), any_progress()))
def test_an_offset_survives_its_text(progress: dict[int, VBucketProgress]) -> None:
    offset = Offset(SOURCE, progress)
    text = json.dumps(offset.to_dict())
    assert Offset.of_dict(json.loads(text), SOURCE) == offset
    backwards = Offset(SOURCE, dict(reversed(progress.items())))
    assert json.dumps(backwards.to_dict()) == text


def test_the_text_can_be_read_by_people() -> None:
    assert Offset(SOURCE, {7: PROGRESS}).to_dict() == {
        "format": 1, "bucket": "travel", "bucket_uuid": "5f1c", "vbuckets": 16, "at": {"7": LINE},
    }  # fmt: skip


def test_nothing_decided_yet_is_no_offset() -> None:
    assert Offset.of_dict({}, SOURCE) is None
    assert from_beginning(SOURCE).to_dict() != {}


def test_a_step_asks_from_its_newest_boundary_under_an_honest_claim() -> None:
    assert PROGRESS.start == 1030
    assert PROGRESS.request == StreamOffset(0xC0FFEE, 1030, Snapshot(912, 1045))
    latest = VBucketProgress(seqno=50, log=FailoverLog.of((0xBEEF, 0)), origin=50)
    assert latest.request == StreamOffset(0xBEEF, 50, Snapshot(50, 50))
    assert UNTOUCHED.request == StreamOffset.beginning()


@pytest.mark.parametrize("rows", [None, 500_000], ids=["caught up", "far behind"])
def test_a_thousand_vbuckets_that_all_moved_fit_well_below_a_hundred_kib(rows: int | None) -> None:
    rnd = random.Random(1)
    source = SourceIdentity("travel", "5f1c2d3e4f5061728394a5b6c7d8e9f0", 1024)
    offset, highs = from_beginning(source), [rnd.randrange(10**7, 10**8) for _ in range(1024)]
    logs = [FailoverLog.of((rnd.randrange(2**47, 2**48), 0)) for _ in range(1024)]
    for _ in range(30):
        highs = [high + rnd.randrange(1, 2_000) for high in highs]
        facts = {v: ObservedVBucket(highs[v], logs[v], purge_seqno=0) for v in range(1024)}
        offset = plan(offset, facts, Limits(rows=rows))
    assert len(offset.progress) == 1024
    assert len(json.dumps(offset.to_dict())) < 90 * 1024


def test_vbuckets_that_never_moved_cost_nothing() -> None:
    idle = {v: ObservedVBucket(0, FailoverLog.of((v + 1, 0))) for v in range(1, 16)}
    moved = {0: ObservedVBucket(5, FailoverLog.of((99, 0)))}
    assert plan(from_beginning(SOURCE), {**idle, **moved}).progress.keys() == {0}


# ---- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bucket": "beer"}, "its bucket is 'beer' and here it is 'travel'"),
        ({"bucket_uuid": "aaaa"}, "its bucket_uuid is 'aaaa'"),
        ({"vbuckets": 64}, "its vbuckets is 64 and here it is 16"),
        ({"vbuckets": 16.0}, "its vbuckets is 16.0"),
        ({"format": 2}, "format 2, written by a later release"),
    ],
)
def test_offsets_of_another_source_or_a_later_release_are_refused(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        Offset.of_dict(stored(**changes), SOURCE)
    assert "new checkpoint" in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 0}, {"format": True}, {"format": "1"}, {"format": None}, {"more": 1},
        {"at": []}, {"at": {"16": LINE}}, {"at": {"07": LINE}}, {"at": {"-1": LINE}},
        {"at": {"x": LINE}}, {"at": {"7": [1]}}, {"at": {"7": None}},
        {"at": {str(v): LINE for v in range(17)}},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_offset_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="the checkpoint's offset is damaged"):
        Offset.of_dict(stored(**changes), SOURCE)


@pytest.mark.parametrize("found", [None, [], "text", 7, {"vb": {}}])
def test_what_is_no_offset_at_all_is_refused(found: object) -> None:
    with pytest.raises(ConfigError, match="damaged"):
        Offset.of_dict(found, SOURCE)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "no line"),
        (LINE[:-3], "no line"),
        (LINE + " ", "no line"),
        (LINE.replace("c0ffee", "C0FFEE"), "no line"),
        (LINE.replace("1042", "\u0661042"), "no line"),
        (LINE.replace("1042", "01042"), "written"),
        (LINE.replace("-12+15", "-1043+15"), "do not rise"),
        (LINE.replace("-12+15", "-130+15"), "do not rise"),
        (LINE.replace("~131", "~134"), "below its boundary"),
        (LINE.replace("from:40", "from:912"), "do not rise"),
        (LINE.replace("from:40", "from:0"), "written"),
        ("1042 aa -12+12", "written"),
        ("5 aa from:6", "above its seqno"),
        (LINE.replace("b2 ", "b0 "), "written"),
        (LINE.replace("beef", "beef@0"), "written"),
        (LINE.replace("beef", "beef@901"), "begins above a newer one"),
        (LINE.replace("+15", f"+{NO_END}"), "64 bits"),
        (LINE.replace("purge:2000", f"purge:{NO_END + 1}"), "64 bits"),
        (LINE.replace("-12+15", "-12+15 " * 200), "no line"),
    ],
)
def test_a_damaged_line_is_refused_with_its_vbucket_and_what_is_wrong(
    line: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=f"vbucket 7: .*{words}"):
        Offset.of_dict(stored(at={"7": line}), SOURCE)


@pytest.mark.parametrize("count", [0, -1, 65537])
def test_a_bucket_has_a_sane_number_of_vbuckets(count: int) -> None:
    with pytest.raises(ConfigError):
        SourceIdentity("travel", "", count)


# ---- which boundaries are kept -----------------------------------------------------------


@given(st.sets(U64, max_size=50), st.integers(5, 32))
def test_thinning_keeps_the_two_newest_and_invents_nothing(seqnos: set[int], most: int) -> None:
    boundaries = tuple(Boundary(seqno, seqno) for seqno in sorted(seqnos))
    kept = thinned(boundaries, most)
    assert len(kept) == min(len(boundaries), most)
    assert set(kept) <= set(boundaries)
    assert kept[-2:] == boundaries[-2:]


@pytest.mark.parametrize(("vbuckets", "most"), [(1, 32), (64, 32), (512, 10), (1024, 5)])
def test_small_buckets_keep_more_boundaries(vbuckets: int, most: int) -> None:
    assert most_boundaries(vbuckets) == most


@pytest.mark.parametrize(("most", "factor", "oldest"), [(5, 32, 30), (10, 6.1, 300), (32, 2, 2000)])
def test_old_boundaries_survive_many_batches_without_leaving_the_near_past_empty(
    most: int, factor: float, oldest: int
) -> None:
    boundaries: tuple[Boundary, ...] = ()
    for batch in range(1, 5_000):
        boundaries = thinned((*boundaries, Boundary(batch * 100, batch * 100)), most)
        distances = [batch * 100 - boundary.seqno for boundary in boundaries[-2::-1]]
        assert all(far <= factor * near for near, far in pairwise(distances))
        if batch > 4_000:
            assert distances[0] == 100
            assert distances[-1] >= oldest * 100
