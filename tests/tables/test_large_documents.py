"""Large documents: what a task has in memory is bounded by bytes, however large the documents."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tablekit import ModelledBucket, require_history
from test_rows import builder, decoded
from test_table_histories import bucket, caught_up, small

from upriver.files.storage import Storage
from upriver.tables.format import row_pieces
from upriver.tables.format.data_files import Gathered, RowFiles, read_rows
from upriver.tables.format.row_pieces import PIECE_BYTES, joined, parquet_pieces
from upriver.tables.places import TablePlace
from upriver.tables.upkeep.manual_maintenance import compact
from upriver.wire.values import deflate

__all__ = ["bucket", "small"]

MIB = 1 << 20
LARGE = 4 * MIB
DOCUMENTS = 60
#: Far less than the documents together, and more than a task gathers.
ALLOWED = 192 * MIB


#: Pools are never freed: whatever was allocated from one may live as long as the process.
_pools: list[pa.MemoryPool] = []


@pytest.fixture
def arrow() -> Iterator[pa.MemoryPool]:
    """Counts what Arrow allocates for the test."""
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    _pools.append(counting)
    pa.set_memory_pool(counting)
    yield counting
    pa.set_memory_pool(before)


def most(pool: pa.MemoryPool) -> int:
    found = pool.max_memory()
    assert found is not None
    return found


def write_all(bucket: ModelledBucket, chance: random.Random) -> None:
    for number in range(DOCUMENTS):
        bucket.write(number % 4, b"k%d" % number, chance.randbytes(LARGE))


@pytest.mark.parametrize("kind", ["changelog", "mirror", "history"])
def test_a_task_needs_less_than_its_documents(
    bucket: ModelledBucket, tmp_path: Path, arrow: pa.MemoryPool, kind: str
) -> None:
    """In a first load, in a batch that replaces all of it, and when that is compacted."""
    chance = random.Random(4)
    for _ in range(2):
        write_all(bucket, chance)
        caught_up(bucket, tmp_path / "table", kind=kind)
        assert most(arrow) < ALLOWED
    compact(TablePlace.parse(tmp_path / "table"), seconds=0)
    assert LARGE < most(arrow) < ALLOWED


def rows(*sizes: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"value": pa.array([bytes(size)])}) for size in sizes]


def test_joined_rows_are_bounded_by_bytes_and_keep_their_order() -> None:
    sizes = [MIB, 5 * MIB, 3 * MIB, 20 * MIB, 10, 7 * MIB, 2 * MIB, *(100 for _ in range(3000))]
    found = list(joined(rows(*sizes)))
    lengths = [len(value.as_py()) for piece in found for value in piece.column(0)]
    assert lengths == sizes
    assert all(piece.nbytes <= PIECE_BYTES + 20_000 or len(piece) == 1 for piece in found)
    assert len(found) < 10


def test_values_that_expand_are_joined_no_further_than_others() -> None:
    """2 MiB that a server sends are 40 MiB, and 2,048 such rows were joined."""
    packed = deflate(bytes(2 * MIB))
    many = decoded(*({"value": packed, "datatype": 3, "seqno": n + 1} for n in range(20)))
    found = list(joined(piece for _ in range(3) for piece in builder().changes(many)))
    assert sum(piece.num_rows for piece in found) == 60
    assert max(piece.nbytes for piece in found) < PIECE_BYTES + 4 * MIB


def test_a_file_is_read_in_pieces_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where values repeat, so that the file has them only once."""
    monkeypatch.setattr(row_pieces, "PIECE_BYTES", MIB)
    chance = random.Random(1)
    table = pa.table(
        {"n": list(range(40)), "text": [chance.randbytes(MIB // 4) for _ in range(40)]}
    )
    pq.write_table(table, tmp_path / "rows")
    found = list(parquet_pieces(pq.ParquetFile(tmp_path / "rows")))
    assert [n for piece in found for n in piece.column("n").to_pylist()] == list(range(40))
    assert max(piece.nbytes for piece in found) <= MIB + 1000
    same = pa.table({"text": [bytes(MIB)] * 40})
    pq.write_table(same, tmp_path / "same", row_group_size=4)
    found = list(parquet_pieces(pq.ParquetFile(tmp_path / "same")))
    assert max(piece.num_rows for piece in found) <= 4


def test_many_tables_of_one_task_share_its_limit(tmp_path: Path) -> None:
    schema, shared = pa.schema([("value", pa.binary())]), Gathered(10 * MIB)
    tables = [
        RowFiles(Storage.parse(tmp_path / str(number)), schema, gathered=shared)
        for number in range(6)
    ]
    for _ in range(4):
        for files in tables:
            files.add(rows(MIB)[0])
            assert sum(one.size for one in tables) <= 10 * MIB
    for number, files in enumerate(tables):
        (new,) = files.finish()
        read = list(read_rows(Storage.parse(tmp_path / str(number)), new.file))
        assert sum(piece.num_rows for piece in read) == 4


def test_a_history_that_is_read_in_small_pieces_is_the_same(
    bucket: ModelledBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_pieces, "PIECE_BYTES", 300)
    for turn in range(3):
        for number in range(20):
            bucket.write(number % 4, b"k%d" % number, b"%d" % turn * 100)
        caught_up(bucket, tmp_path / "table", kind="history")
    bucket.fail_over(1, bucket.high(1) - 3)
    caught_up(bucket, tmp_path / "table", kind="history")
    require_history(tmp_path / "table", bucket)


def test_a_task_gathers_no_more_than_its_memory_allows(
    bucket: ModelledBucket, tmp_path: Path, arrow: pa.MemoryPool
) -> None:
    write_all(bucket, random.Random(5))
    caught_up(bucket, tmp_path / "table", task_memory="64m")
    assert LARGE < most(arrow) < 96 * MIB
