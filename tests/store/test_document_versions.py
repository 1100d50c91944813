"""The versions of a document that a bucket still has."""

from __future__ import annotations

from upriver.model import Op
from upriver.store import document_key
from upriver.testing import TemporaryProducer


def test_versions_are_listed_newest_first_with_deletions() -> None:
    with TemporaryProducer(vbuckets=2) as producer:
        for value in (b"1", b"2", b"3"):
            producer.write(b"k", value, vbucket=1)
            producer.write(b"other", value, vbucket=1)
        producer.delete(b"k", vbucket=1)
        key = document_key(b"k")
        found = producer.bucket.versions(1, key, 10)
        assert [one.op for one in found] == [Op.DELETION] + [Op.MUTATION] * 3
        assert [one.value for one in found] == [b"", b"3", b"2", b"1"]
        assert [one.seqno for one in found] == [7, 5, 3, 1]
        assert [one.seqno for one in producer.bucket.versions(1, key, 2)] == [7, 5]
        assert producer.bucket.versions(1, document_key(b"none"), 10) == []
        assert producer.bucket.versions(0, key, 10) == []


def test_the_next_change_after_a_seqno_is_found_over_gaps() -> None:
    with TemporaryProducer(vbuckets=2) as producer:
        for value in (b"1", b"2", b"3"):
            producer.write(b"k", value, vbucket=1)
        (newest,) = producer.bucket.versions(1, document_key(b"k"), 1)
        assert producer.bucket.next_cas(1, 0) == newest.cas
        assert producer.bucket.next_cas(1, 2) == newest.cas
        assert producer.bucket.next_cas(1, 3) is None
        assert producer.bucket.next_cas(0, 0) is None
