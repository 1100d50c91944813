"""A bucket that was restored from an older copy begins new branches."""

from __future__ import annotations

import shutil
from pathlib import Path

from upriver.consumer import Consumer, MemoryCheckpoint, Rollback
from upriver.testing import TemporaryProducer


def test_readers_of_later_changes_are_rolled_back_and_miss_nothing(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    checkpoint = MemoryCheckpoint()
    with TemporaryProducer(vbuckets=2, data=data) as producer:
        for number in range(4):
            producer.write(b"%d" % number, b"first", vbucket=0)
    shutil.copytree(data, copy)
    with TemporaryProducer(vbuckets=2, data=data) as producer:
        for number in range(4, 8):
            producer.write(b"%d" % number, b"lost", vbucket=0)
        with Consumer(producer.source, end="now", checkpoint=checkpoint) as consumer:
            assert len(list(consumer)) == 8
            consumer.save()
    with TemporaryProducer(vbuckets=2, data=copy) as producer:
        producer.bucket.begin_branches()
        for number in range(4):  # which get the seqnos of those that are lost
            producer.write(b"new %d" % number, b"after", vbucket=0)
        assert len(producer.bucket.failover_log(0)) == 2
        told: list[Rollback] = []
        with Consumer(
            producer.source, end="now", checkpoint=checkpoint, on_rollback=told.append
        ) as consumer:
            changes = list(consumer)
        # the snapshot that it had read reaches across the branch, so it goes back to its start
        assert [(one.vbucket, one.to_seqno) for one in told] == [(0, 0)]
        assert [change.seqno for change in changes] == list(range(1, 9))
        assert {change.value for change in changes} == {b"first", b"after"}
