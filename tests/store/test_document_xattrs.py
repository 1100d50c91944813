"""Extended attributes stay with their document, whatever is done to its body."""

from __future__ import annotations

import pytest
from storekit import key

from upriver.errors import Status, StoreRefusal
from upriver.model import Datatype
from upriver.store import (
    AppendToDocument,
    Bucket,
    Counter,
    DeleteDocument,
    PrependToDocument,
    RecordKind,
    ReplaceDocument,
    SetDocument,
    TouchDocument,
)
from upriver.wire import canonical, values

K = key("k")
XATTRS = {"user": b'{"a":1}', "_sync": b'"rev"'}
XATTR = int(Datatype.XATTR)
SNAPPY = int(Datatype.SNAPPY)


def parts(bucket: Bucket) -> tuple[dict[str, bytes], bytes]:
    document = bucket.get(0, K)
    return values.unwrap(document.value, Datatype(document.datatype))


@pytest.fixture
def attributed(bucket: Bucket) -> Bucket:
    bucket.write(SetDocument(0, K, values.join_xattrs(XATTRS, b"1"), datatype=XATTR))
    return bucket


@pytest.mark.parametrize(
    ("change", "body"),
    [
        (SetDocument(0, K, b"new"), b"new"),
        (ReplaceDocument(0, K, b"new"), b"new"),
        (SetDocument(0, K, values.deflate(b"packed"), datatype=SNAPPY), b"packed"),
        (AppendToDocument(0, K, b"2"), b"12"),
        (PrependToDocument(0, K, b"2"), b"21"),
        (Counter(0, K, 4), b"5"),
        (TouchDocument(0, K, 100), b"1"),
    ],
)
def test_they_stay(attributed: Bucket, change: SetDocument, body: bytes) -> None:
    attributed.write(change)
    assert parts(attributed) == (XATTRS, body)


def test_a_document_may_bring_its_own(attributed: Bucket) -> None:
    attributed.write(SetDocument(0, K, values.join_xattrs({"other": b"1"}, b"x"), datatype=XATTR))
    assert parts(attributed) == ({"other": b"1"}, b"x")


def test_compressed_values_are_unpacked_where_that_is_needed(bucket: Bucket) -> None:
    packed = values.deflate(values.join_xattrs(XATTRS, b"body"))
    bucket.write(SetDocument(0, K, packed, datatype=XATTR | SNAPPY))
    bucket.write(AppendToDocument(0, K, b"!"))
    assert parts(bucket) == (XATTRS, b"body!")


def test_a_deletion_keeps_system_xattrs_only(attributed: Bucket) -> None:
    seqno = attributed.write(DeleteDocument(0, K)).seqno
    assert attributed.meta(0, K).kind == RecordKind.DELETION
    with attributed.open_reader(0, seqno - 1) as reader:
        chunk = reader.read()
    assert chunk is not None
    tombstone = canonical.parse(chunk.frames)
    assert values.split_xattrs(tombstone.value) == ({"_sync": b'"rev"'}, b"")
    attributed.write(SetDocument(0, K, b"again"))
    assert parts(attributed) == ({}, b"again")


@pytest.mark.parametrize("datatype", [XATTR, XATTR | SNAPPY])
def test_broken_ones_are_refused(bucket: Bucket, datatype: int) -> None:
    with pytest.raises(StoreRefusal) as refused:
        bucket.write(SetDocument(0, K, b"\xff\xff\xff\xffrubbish", datatype=datatype))
    assert refused.value.status is Status.XATTR_INVALID
