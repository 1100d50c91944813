"""``upriver tail`` with servers that know one document of the protocol and nothing else."""

from __future__ import annotations

import pytest
from printed_servers import ALONE, Alone
from running import finished, records

pytestmark = pytest.mark.story


@pytest.mark.parametrize("how", ["auto", "named"])
@pytest.mark.parametrize("alone", ALONE, ids=[alone.dialect for alone in ALONE])
def test_the_changes_of_a_server_that_knows_one_document(alone: Alone, how: str) -> None:
    dialect = alone.dialect if how == "named" else how
    with alone.server() as server:
        words = ("--vbuckets", alone.vbucket, "--dialect", dialect, "--limit", 3, "--json")
        result = finished("tail", server.source, *words)
    assert result.returncode == 0, result.stderr
    changes = [record for record in records(result.stdout) if "seqno" in record]
    assert [(change["type"], change["seqno"]) for change in changes] == [
        ("mutation", alone.seqnos[0]),
        ("deletion", alone.seqnos[1]),
        ("expiration", alone.seqnos[2]),
    ]
    assert {change["vbucket"] for change in changes} == {alone.vbucket}
