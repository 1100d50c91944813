"""The sampled size of changes is that of the rows which tasks will make of them."""

from __future__ import annotations

from collections.abc import Iterator

import cramjam
import pytest

from upriver.batches.options import ReadOptions
from upriver.batches.row_size import RowSize
from upriver.model import Datatype
from upriver.store import SetDocument, document_key
from upriver.testing import TemporaryProducer
from upriver.wire.values import join_xattrs

VALUE = b'{"text":"%s"}' % (b"a" * 2_000)
XATTRS = {"note": b'"%s"' % (b"b" * 1_000)}


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    """In vbucket 0 is a document with extended attributes, in vbucket 1 a compressed one."""
    with TemporaryProducer(vbuckets=2) as made:
        with_xattrs = int(Datatype.XATTR | Datatype.JSON)
        packed = bytes(cramjam.snappy.compress_raw(VALUE))
        for change in (
            SetDocument(0, document_key(b"k"), join_xattrs(XATTRS, VALUE), datatype=with_xattrs),
            SetDocument(1, document_key(b"k"), packed, datatype=int(Datatype.SNAPPY)),
        ):
            made.bucket.write(change)
        yield made


def sampled(producer: TemporaryProducer, vbucket: int, **options: str) -> float:
    chosen = ReadOptions.parse({"path": producer.source, **options})
    return RowSize().learn(chosen, {vbucket: 1, 1 - vbucket: 0})


def test_extended_attributes_count_if_they_are_read(producer: TemporaryProducer) -> None:
    without, with_them = (sampled(producer, 0, xattrs=said) for said in ("false", "true"))
    assert 2_000 < without < 3_000 < with_them


def test_compressed_values_count_as_rows_have_them(producer: TemporaryProducer) -> None:
    assert sampled(producer, 1) > 2_000
    assert sampled(producer, 1, compression="true") > 2_000
    assert sampled(producer, 1, compression="true", decompress="false") < 1_000


def test_a_bucket_with_nothing_to_read_is_not_sampled(producer: TemporaryProducer) -> None:
    assert RowSize().learn(ReadOptions.parse({"path": producer.source}), {0: 0, 1: 0}) == 512.0
