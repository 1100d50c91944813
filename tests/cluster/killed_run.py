"""A run of one test that starts a cluster and never ends: pytest collects it only when named."""

from __future__ import annotations

import os
import time
from pathlib import Path

from localcluster import LocalCluster, manager_pid

from upriver.cluster import node_lock


def test_that_is_killed() -> None:
    home = Path(os.environ["KILLED_RUN"])
    with LocalCluster(home / "cluster", nodes=2, replicas=0, vbuckets=4) as cluster:
        nodes = [node_lock.read(cluster.data(name))["pid"] for name in cluster.nodes]
        numbers = [os.getpid(), manager_pid(cluster), *nodes]
        (home / "written").write_text(" ".join(map(str, numbers)))
        (home / "written").rename(home / "numbers")
        while True:
            time.sleep(3600)
