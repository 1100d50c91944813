"""The bytes of tables: deletion vectors, key indexes, commits, JSON values; and their readers."""

from __future__ import annotations

import json
import random
import struct
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64
from tablekit import ModelledBucket, rows_of
from test_table_histories import caught_up, small

from upriver import _entropy
from upriver.errors import ConfigError, UpriverError
from upriver.files.storage import Storage
from upriver.tables.commit_state import TableState
from upriver.tables.format import data_files, deletion_vectors, delta_log, key_index
from upriver.tables.format.data_files import Gathered, RowFiles, load_index, read_rows
from upriver.tables.format.deletion_vectors import VectorFile, path_of, read_vector
from upriver.tables.format.delta_log import DataFile
from upriver.tables.format.key_index import Hashes, KeyIndex, binding_of, hashes_of
from upriver.tables.rows.json_columns import NOT_JSON, TOO_DEEP, JsonColumns
from upriver.tables.rows.row_shape import MirrorShape
from upriver.tables.upkeep.compaction import CompactionPace, chosen_for_compaction
from upriver.testing import TemporaryProducer

__all__ = ["small"]

VBUCKETS = 4


# ---- deletion vectors --------------------------------------------------------------------


def test_a_vector_file_has_the_bytes_that_delta_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        _entropy, "uuid4", lambda: uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
    )
    storage = Storage.parse(tmp_path)
    file = VectorFile()
    first, second = file.add(BitMap64([3, 4, 7])), file.add(BitMap64([1 << 33]))
    file.write(storage)
    assert (first["offset"], first["sizeInBytes"], first["cardinality"]) == (1, 38, 3)
    assert second["offset"] == 1 + 4 + 38 + 4
    assert path_of(first) == "_dv/deletion_vector_01234567-89ab-cdef-0123-456789abcdef.bin"
    data = (tmp_path / str(path_of(first))).read_bytes()
    assert data[:1] == b"\x01"
    assert data[1:9] == struct.pack(">i", 38) + bytes.fromhex("d1d33964")  # size, magic
    assert data[9:17] == struct.pack("<Q", 1)  # one bitmap of 32 bits
    assert list(read_vector(storage, first)) == [3, 4, 7]
    assert list(read_vector(storage, second)) == [1 << 33]
    damaged = bytearray(data)
    damaged[20] ^= 1
    (tmp_path / str(path_of(first))).write_bytes(damaged)
    with pytest.raises(UpriverError, match="is damaged"):
        read_vector(storage, first)


def test_an_inline_vector_of_another_writer_is_read(tmp_path: Path) -> None:
    # the example of Delta's protocol: rows 3, 4, 7, 11, 18 and 29
    descriptor = {
        "storageType": "i",
        "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        "sizeInBytes": 44,
        "cardinality": 6,
    }
    assert list(read_vector(Storage.parse(tmp_path), descriptor)) == [3, 4, 7, 11, 18, 29]


# ---- key index ---------------------------------------------------------------------------


def test_the_hash_is_siphash() -> None:
    """Against the reference's own vector for the key 00 to 0f and the input 00 to 0f."""
    key = bytes(range(16))
    words = np.array([[v] for v in struct.unpack("<QQ", bytes(range(16)))], np.uint64)
    empty = np.array([0, 0], np.int64)
    found = key_index._siphash(words, empty, np.empty(0, np.uint8), key)
    assert (
        struct.pack("<QQ", int(found.high[0]), int(found.low[0])).hex()
        == "6ee2a4ca67b054bbfd3315bf85230577"
    )


def names(*keys: bytes, vbucket: int = 1, scope: str | None = "s") -> pa.Table:
    count = len(keys)
    return pa.table(
        {
            "vbucket": pa.array([vbucket] * count, pa.int32()),
            "scope": pa.array([scope] * count, pa.string()),
            "collection": pa.array(["c"] * count, pa.string()),
            "key": pa.array(keys, pa.binary()),
        }
    )


@given(st.lists(st.binary(max_size=40), unique=True, max_size=60), st.data())
def test_an_index_finds_exactly_what_it_has(keys: list[bytes], data: st.DataObject) -> None:
    secret = bytes(16)
    index = KeyIndex.build(hashes_of(names(*keys), secret), np.arange(len(keys)))
    mine, count = binding_of("part.parquet", 100, len(keys), secret), len(keys)
    stored = KeyIndex.of_bytes(index.to_bytes(mine), mine, count)
    assert stored is not None
    for other in (("p", 100, count, secret), ("part.parquet", 101, count, secret)):
        assert KeyIndex.of_bytes(index.to_bytes(mine), binding_of(*other), count) is None
    assert not count or KeyIndex.of_bytes(index.to_bytes(mine), mine, count - 1) is None
    wanted = data.draw(st.lists(st.sampled_from([*keys, b"no" * 30]), unique=True, max_size=20))
    found = stored.find(hashes_of(names(*wanted), secret))
    assert sorted(found.tolist()) == sorted(keys.index(key) for key in wanted if key in keys)


def test_names_differ_in_every_part_and_the_last_row_of_a_name_counts() -> None:
    secret = bytes(range(16))
    tables = [names(b"a"), names(b"a", vbucket=2), names(b"a", scope=None), names(b"a\0")]
    every = Hashes.joined([hashes_of(table, secret) for table in tables])
    assert every.newest().all()
    twice = hashes_of(names(b"a", b"b", b"a", b"c", b"b"), secret)
    assert twice.newest().tolist() == [False, False, True, True, True]


# ---- data files --------------------------------------------------------------------------


@pytest.mark.parametrize("most", [2**20, 1], ids=["one file a group", "files become full"])
def test_many_rows_have_a_file_for_each_group_and_the_last_of_a_document_lives(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order in which they come, and with deletions between them."""
    monkeypatch.setattr(data_files, "_MOST_FILE_BYTES", most)
    storage, secret, dice = Storage.parse(tmp_path), bytes(range(16)), random.Random(2)
    shape = MirrorShape(groups=3)
    wanted: dict[bytes, int] = {}
    with RowFiles(storage, shape.arrow_schema, key=secret, gathered=Gathered(2000)) as files:
        for seqno in range(0, 400, 10):
            keys = [b"k%d" % dice.randrange(60) for _ in range(10)]
            rows = pa.table(
                {
                    **{name: pa.nulls(10, kind) for name, kind in _types(shape)},
                    "key": pa.array(keys, pa.binary()),
                    "vbucket": pa.array([int(key[1:]) % 7 for key in keys], pa.int32()),
                    "vbucket_group": pa.array([int(key[1:]) % 7 % 3 for key in keys], pa.int32()),
                    "seqno": pa.array(range(seqno, seqno + 10), pa.int64()),
                },
                schema=shape.arrow_schema,
            )
            is_row = np.array([dice.random() < 0.8 for _ in keys])
            for key, number, lives in zip(keys, range(seqno, seqno + 10), is_row, strict=True):
                wanted.pop(key, None)
                if lives:
                    wanted[key] = number
            files.add(rows.to_batches()[0], is_row)
        written = files.finish()
    groups = [one.file.groups for one in written]
    assert set(groups) == {(0, 0), (1, 1), (2, 2)}
    assert (len(groups) == 3) == (most > 1)
    found: dict[bytes, int] = {}
    for one in written:
        for batch in read_rows(storage, one.file, but=one.dead):
            names = batch.select(list(key_index.NAME_COLUMNS))
            places = load_index(storage, one.file, secret).find(hashes_of(names, secret))
            assert len(places) == batch.num_rows
            found |= {row["key"]: row["seqno"] for row in batch.to_pylist()}
    assert found == wanted


def test_a_round_of_compaction_is_bounded_and_says_whether_more_is_due() -> None:
    files = [DataFile(f"{n}", 1000, 10, groups=(n % 4, n % 4)) for n in range(4 * 8)]
    chosen, more = chosen_for_compaction(files, most_bytes=17_000)
    assert ([len(some) for some in chosen], more) == ([8, 8], True)
    chosen, more = chosen_for_compaction(files, most_bytes=1)
    assert (len(chosen), more) == (1, True)
    chosen, more = chosen_for_compaction(files, everything=True, most_bytes=1)
    assert ([len(some) for some in chosen], more) == ([32], False)
    assert chosen_for_compaction(files[:4]) == ([], False)
    pace = CompactionPace(1000)
    pace.took(1000, 4.0)
    assert pace.bytes == 625
    pace.took(1000, 0.0)
    assert 625 < pace.bytes < 4 * 625


def _types(shape: MirrorShape) -> list[tuple[str, Any]]:
    return [(cell.name, cell.type) for cell in shape.arrow_schema]


# ---- commits -----------------------------------------------------------------------------


def test_of_racing_commits_one_makes_the_version(tmp_path: Path) -> None:
    storage = Storage.parse(tmp_path)
    won: list[int] = []

    def race(number: int) -> None:
        for version in range(20):
            if delta_log.commit(storage, version, [], operation=str(number)) is not None:
                won.append(version)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(20))


def test_a_commit_whose_answer_was_lost_is_known_as_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.parse(tmp_path)
    create = Storage.create

    def forgetful(self: Storage, path: str, data: bytes) -> bool:
        create(self, path, data)
        return create(self, path, data)  # as a client that asks again

    monkeypatch.setattr(Storage, "create", forgetful)
    assert delta_log.commit(storage, 0, [], operation="A") is not None


def test_a_state_of_a_later_release_or_damaged_is_refused() -> None:
    text = TableState(batch=3).to_text()
    assert TableState.of_text(text, "t").batch == 3
    for wrong, said in (
        (text.replace('"format":1', '"format":2'), "a later release"),
        (text.replace('"packed":"', '"packed":"!'), "is damaged"),
        ("{", "is damaged"),
    ):
        with pytest.raises(ConfigError, match=said):
            TableState.of_text(wrong, "t")


# ---- JSON values -------------------------------------------------------------------------

SCHEMA = (
    '{"type":"struct","fields":['
    + ",".join(
        json.dumps({"name": name, "type": kind, "nullable": True, "metadata": {}})
        for name, kind in {
            "s": "string",
            "i": "integer",
            "l": "long",
            "d": "double",
            "b": "boolean",
            "t": "timestamp",
            "day": "date",
            "dec": "decimal(6,2)",
            "a": {"type": "array", "elementType": "integer", "containsNull": True},
        }.items()
    )
    + "]}"
)


def json_columns(schema: str, *, rescues: bool = True) -> JsonColumns:
    """From Spark's JSON of a schema."""
    types = {member["name"]: member["type"] for member in json.loads(schema)["fields"]}
    return JsonColumns(types, rescues=rescues)


@pytest.mark.parametrize(
    ("value", "member", "wanted"),
    [
        (b'{"s":"x","more":1}', "s", "x"),
        (b'{"s":{"a":[1,2]}}', "s", '{"a":[1,2]}'),
        (b'{"i":1.0}', "i", "misfit"),
        (b'{"i":2147483648}', "i", "misfit"),
        (b'{"l":2147483648}', "l", 2147483648),
        (b'{"d":1}', "d", 1.0),
        (b'{"b":"true"}', "b", "misfit"),
        (b'{"a":[1,null]}', "a", [1, None]),
        (b'{"a":{}}', "a", "misfit"),
        (b'{"dec":12.340}', "dec", "12.34"),
        (b'{"dec":12.345}', "dec", "misfit"),
        (b'{"dec":12345.6}', "dec", "misfit"),
        (b'{"day":"2026-11-17"}', "day", "2026-11-17"),
        (b'{"t":"2026-11-17T01:02:03Z"}', "t", "2026-11-17 01:02:03+00:00"),
        (b'{"t":"9999-12-31T23:59:59-23:59"}', "t", "misfit"),
        (b'{"dec":"NaN"}', "dec", "misfit"),
        (b'{"s":"\\ud800"}', "s", "misfit"),
        (b"[1]", "s", "misfit"),
        (b"\xff", "s", "no JSON"),
        (b'{"i":NaN}', "i", "no JSON"),
        (b"[" * 100_000, "s", "no JSON"),
        (b"", "s", "no JSON"),
    ],
)
def test_json_members_become_columns_or_the_value_is_kept(
    value: bytes, member: str, wanted: Any
) -> None:
    values = pa.array([value], pa.binary())
    parsed = json_columns(SCHEMA, rescues=False).parse(values)
    (found,), (kept,) = parsed.columns[member].to_pylist(), parsed.corrupt.to_pylist()
    (reason,) = parsed.reasons
    if wanted in ("misfit", "no JSON"):
        assert (found, kept) == (None, value)
        assert reason is not None
        assert (reason in (NOT_JSON, TOO_DEEP)) == (wanted == "no JSON")
        saved = json_columns(SCHEMA).parse(values)
        (rescued,) = saved.rescued.to_pylist()
        is_object = wanted == "misfit" and value.startswith(b"{")
        assert (rescued is not None) == is_object
        if is_object:
            assert saved.corrupt.to_pylist() == [None]
            assert json.loads(rescued) == {member: json.loads(value)[member]}
    else:
        assert (kept, reason) == (None, None)
        assert found == wanted or str(found) == wanted


@given(
    st.lists(
        st.one_of(
            st.fixed_dictionaries(
                {},
                optional={
                    "s": st.one_of(st.none(), st.text(), st.integers()),
                    "l": st.one_of(st.none(), st.integers(-(2**65), 2**65), st.floats()),
                    "d": st.one_of(st.floats(), st.integers()),
                    "b": st.one_of(st.booleans(), st.just("true")),
                    "more": st.none(),
                },
            ).map(lambda members: json.dumps(members).encode()),
            st.sampled_from([None, b"", b"[1]", b'{"s":"\\ud800"}', b"\xff", b'{"d":1e999}']),
        ),
        max_size=6,
    )
)
def test_columns_that_are_converted_at_once_are_those_that_are_converted_one_by_one(
    values: list[bytes | None],
) -> None:
    kinds = {"s": "string", "l": "long", "d": "double", "b": "boolean"}
    fields = [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in kinds.items()]
    columns = json_columns(json.dumps({"type": "struct", "fields": fields}))

    def parsed() -> str:
        done = columns.parse(pa.array(values, pa.binary()))
        found, corrupt, reasons = done.columns, done.corrupt, done.reasons
        held = {name: column.to_pylist() for name, column in found.items()}
        return repr((held, corrupt.to_pylist(), reasons))

    at_once = parsed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonColumns, "_parse_plain", lambda self, values: None)
        assert parsed() == at_once


# ---- readers -----------------------------------------------------------------------------


@pytest.fixture
def bucket() -> Iterator[ModelledBucket]:
    with TemporaryProducer(vbuckets=VBUCKETS) as producer:
        yield ModelledBucket(producer)


def test_readers_read_equal_rows(bucket: ModelledBucket, tmp_path: Path) -> None:
    table = tmp_path / "documents"
    dice = random.Random(1)
    for number in range(200):
        bucket.write(number % VBUCKETS, b"k%d" % number, b"%d" % number)
    for _ in range(4):
        caught_up(bucket, table)
        for number in dice.sample(range(200), 30):
            bucket.write(number % VBUCKETS, b"k%d" % number, b"%d" % dice.randrange(1000))
        for number in dice.sample(range(200), 5):
            if bucket.has(number % VBUCKETS, b"k%d" % number):
                bucket.delete(number % VBUCKETS, b"k%d" % number)
    caught_up(bucket, table)
    assert list((table / deletion_vectors.FOLDER).iterdir()), "there is no vector to heed"
    wanted = sorted(bucket.documents().items())

    def pairs(rows: Any) -> list[tuple[bytes, bytes]]:
        return sorted(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))

    assert sorted((row["key"], row["value"]) for row in rows_of(table)) == wanted
    assert pairs(pa.table(DeltaTable(table).scan(columns=["key", "value"]))) == wanted
    assert pairs(pl.read_delta(str(table)).to_arrow()) == wanted
    assert pairs(pl.scan_delta(str(table)).select("key", "value").collect().to_arrow()) == wanted
    with pytest.raises(Exception, match=r"(?i)deletion.?vectors"):
        DeltaTable(table).to_pyarrow_dataset()
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as database:
        import duckdb_extension_delta

        folder = Path(duckdb_extension_delta.__file__).parent
        (extension,) = folder.rglob("*.duckdb_extension*")
        database.execute(f"LOAD '{extension}'")
        rows = database.execute(f"SELECT key, value FROM delta_scan('{table}')").fetchall()
    assert sorted(rows) == wanted
