"""Parts of a `Rows` event: their rows, their steps, and their share of the flow-control window."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from upriver.model import Snapshot
from upriver.session.consumer_events import Rows, Step

SNAPSHOT = Snapshot(0, 100)


def rows(stops: list[int], counted: int) -> Rows:
    """Rows with their own numbers as seqnos; each step ends at one of ``stops``."""
    count = stops[-1] if stops else 0
    batch = pa.RecordBatch.from_arrays([pa.array(range(count), pa.uint64())], ["seqno"])
    steps = tuple(Step(vb, stop, stop, SNAPSHOT) for vb, stop in enumerate(stops))
    return Rows(batch, steps, counted)


@given(st.lists(st.integers(0, 9)).map(sorted), st.integers(0, 10**6))
def test_slices_by_step_have_all_rows_and_all_bytes(stops: list[int], counted: int) -> None:
    whole = rows(stops, counted)
    starts = [0, *stops]
    pieces = [
        whole.slice(start, step.stop, (step,))
        for start, step in zip(starts, whole.steps, strict=False)
    ]
    seqnos = [row["seqno"] for piece in pieces for row in piece.batch.to_pylist()]
    assert seqnos == list(range(whole.batch.num_rows))
    for piece, step in zip(pieces, whole.steps, strict=True):
        assert piece.steps == (step._replace(stop=piece.batch.num_rows),)
    if seqnos:
        assert sum(piece.counted for piece in pieces) == counted


@given(st.lists(st.integers(0, 9), min_size=1).map(sorted), st.data())
def test_filtered_rows_keep_every_step_and_all_bytes(stops: list[int], data: st.DataObject) -> None:
    whole = rows(stops, 1000)
    count = whole.batch.num_rows
    kept = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    part = whole.filter(np.array(kept, bool))
    assert part.counted == 1000
    assert part.batch.column("seqno").to_pylist() == [n for n in range(count) if kept[n]]
    assert [step.seqno for step in part.steps] == stops
    assert [step.stop for step in part.steps] == [sum(kept[:stop]) for stop in stops]
