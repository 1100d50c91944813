"""Scans of Couchbase's own Python SDK: ranges, prefixes, samples, consistent with writes.

The SDK holds the interpreter while it opens a scan, so the nodes must be other processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from upriver.producer.bootstrap.users import DEVELOPMENT_PASSWORD
from upriver.testing import TemporaryCluster

pytest.importorskip("couchbase", reason="the couchbase package is not installed")

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.collection import Collection
from couchbase.kv_range_scan import PrefixScan, RangeScan, SamplingScan, ScanTerm
from couchbase.mutation_state import MutationState
from couchbase.options import ClusterOptions, ScanOptions

NAMES = [f"doc-{number:03}" for number in range(100)]


@pytest.fixture(scope="module", params=[1, 3], ids=["one node", "three nodes"])
def documents(request: pytest.FixtureRequest) -> Iterator[Collection]:
    with TemporaryCluster(nodes=request.param, replicas=0, vbuckets=16) as nodes:
        access = ClusterOptions(PasswordAuthenticator("anybody", DEVELOPMENT_PASSWORD))
        cluster = Cluster(nodes.source.removesuffix("/default"), access)
        cluster.wait_until_ready(timedelta(seconds=60))
        documents = cluster.bucket("default").default_collection()
        for number, name in enumerate(NAMES):
            documents.upsert(name, {"n": number})
        documents.upsert("other", 1)
        documents.upsert("doc-gone", 1)
        documents.remove("doc-gone")
        yield documents
        cluster.close()


def ids(scan: Any) -> list[str]:
    return sorted(found.id for found in scan)


def test_a_prefix(documents: Collection) -> None:
    found = list(documents.scan(PrefixScan("doc-")))
    assert sorted(one.id for one in found) == NAMES
    assert {one.id: one.content_as[dict] for one in found}["doc-007"] == {"n": 7}
    assert {one.cas for one in found if one.id == "doc-007"} == {documents.get("doc-007").cas}


def test_a_range(documents: Collection) -> None:
    wanted = RangeScan(ScanTerm("doc-010"), ScanTerm("doc-019"))
    assert ids(documents.scan(wanted)) == NAMES[10:20]
    excluding = RangeScan(ScanTerm("doc-010", exclusive=True), ScanTerm("doc-019", exclusive=True))
    assert ids(documents.scan(excluding, ScanOptions(ids_only=True))) == NAMES[11:19]
    assert ids(documents.scan(RangeScan())) == [*NAMES, "other"]


def test_a_sample(documents: Collection) -> None:
    found = ids(documents.scan(SamplingScan(20, 1), ScanOptions(ids_only=True)))
    assert 0 < len(found) <= 20
    assert set(found) <= {*NAMES, "other"}
    assert ids(documents.scan(SamplingScan(500, 1))) == [*NAMES, "other"]


def test_small_batches(documents: Collection) -> None:
    small = ScanOptions(batch_item_limit=1, batch_byte_limit=1)
    assert ids(documents.scan(PrefixScan("doc-"), small)) == NAMES


def test_what_was_written_before_is_seen(documents: Collection) -> None:
    for number in range(5):
        written = documents.upsert("fresh", number)
        after = ScanOptions(consistent_with=MutationState(written))
        (found,) = documents.scan(PrefixScan("fresh"), after)
        assert found.content_as[int] == number
    documents.remove("fresh")


def test_an_empty_range(documents: Collection) -> None:
    assert ids(documents.scan(PrefixScan("nothing"))) == []
