"""Durable writes while vbuckets move to another node: what was promised is there."""

from __future__ import annotations

import threading
from pathlib import Path

from chaoskit import DurableWriter, assert_kept, writing
from localcluster import LocalCluster, assert_copies_equal


def test_durable_writes_go_on_while_vbuckets_move(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", nodes=2, replicas=1, vbuckets=8) as cluster:
        over = threading.Event()
        writers = [DurableWriter(cluster, number, over) for number in range(2)]
        with writing(writers, over):
            cluster.add_node()
            cluster.rebalance()
        assert_kept(cluster, writers)
        assert_copies_equal(cluster)
