"""Branches of history that no node has any more, and who can tell."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from localcluster import LocalCluster, MapClient

from upriver.batches.offset_ranges import ReadStep
from upriver.batches.options import ReadOptions
from upriver.batches.task_reader import read_steps
from upriver.consumer.topology.seqno_survey import Survey
from upriver.consumer.transport.access import Access
from upriver.consumer.transport.connection_string import Source
from upriver.errors import UpriverError
from upriver.model import Snapshot, StreamOffset

#: A vbuuid that is nobody's.
NOBODYS = 12345


def test_a_branch_is_gone_when_every_node_says_so(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "c", nodes=2, replicas=1, vbuckets=4) as cluster,
        MapClient(cluster) as client,
    ):
        written = client.set(b"k", b"v")
        source = Source.parse(cluster.source)
        with Survey(source, Access(), timeout=2) as survey:
            assert written.vbuuid in survey.known_branches(written.vbucket)
            assert NOBODYS not in survey.known_branches(written.vbucket)
        # it would wait for a day if it took the branch for one that others may know
        options = ReadOptions.parse({"path": cluster.source, "retryTimeout": "24h"})
        offset = StreamOffset(NOBODYS, 1, Snapshot(1, 1))
        step = ReadStep(vbucket=written.vbucket, branch=0, offset=offset, end=2)
        with pytest.raises(UpriverError, match="DCP-UNKNOWN-BRANCH"):
            list(read_steps(options, [step]))
        # one that is silent may be the one that knows
        owner = client.map.owner(written.vbucket)
        assert owner is not None
        silent = next(n.name for n in cluster.state.nodes if n.port != owner.address.port)
        cluster.signal(silent, signal.SIGSTOP)
        with Survey(source, Access(), timeout=2) as survey, pytest.raises(UpriverError):
            survey.known_branches(written.vbucket)
        cluster.signal(silent, signal.SIGCONT)
