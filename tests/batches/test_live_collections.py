"""Documents of dropped collections are left out, and only those."""

from __future__ import annotations

import pyarrow as pa
import pytest

from upriver.batches.live_collections import LiveCollections
from upriver.consumer.topology.collection_names import Collections
from upriver.errors import RemoteProtocolError

BATCH = pa.record_batch({"collection": pa.array([0, 8, 0], pa.uint32())})
DEFAULT = Collections.parse(
    b'{"uid":"0","scopes":[{"name":"_default","uid":"0",'
    b'"collections":[{"name":"_default","uid":"0"}]}]}'
)
EMPTY = Collections.parse(b'{"uid":"0","scopes":[]}')


def test_documents_of_a_collection_that_no_manifest_has_are_left_out() -> None:
    rows = LiveCollections(lambda: DEFAULT).rows(BATCH, DEFAULT)
    assert rows.column("collection").to_pylist() == [0, 0]


def test_changes_beside_an_empty_manifest_are_an_error_and_no_empty_result() -> None:
    with pytest.raises(RemoteProtocolError, match="has no scope, not even _default"):
        LiveCollections(lambda: EMPTY).rows(BATCH, EMPTY)
