"""Names and uuids of a server in its maps, and notifications of new maps, byte by byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from talk import Talk
from test_management_port import Management

from upriver.errors import Status
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire.protocol_enums import Feature

#: The features that gocbcore 10.9 offers for maps: known versions, duplex, brief notifications.
MAPS = (Feature.CLUSTERMAP_KNOWN_VERSION, Feature.DUPLEX, Feature.CLUSTERMAP_BRIEF_NOTIFICATION)


def terse(talk: Talk) -> dict[str, object]:
    document = json.loads(talk.ask(kv.GetClusterConfig()).value)
    assert isinstance(document, dict)
    return document


def test_a_server_keeps_its_uuid_and_the_name_it_is_given(tmp_path: Path) -> None:
    with TemporaryProducer(vbuckets=2, data=tmp_path / "one") as producer:
        management = Management(producer)
        uuid = management.get("/pools")["uuid"]
        assert management.get("/pools/default")["clusterName"] == "upriver"
        assert management.ask("POST", "/pools/default", clusterName="test-cluster")[0] == 200
        producer.restart()
        management = Management(producer)
        assert management.get("/pools")["uuid"] == uuid
        assert management.get("/pools/default")["clusterName"] == "test-cluster"
        with Talk(producer) as talk:
            found = terse(talk)
        assert (found["clusterName"], found["clusterUUID"]) == ("test-cluster", uuid)
        (node,) = management.get("/pools/default")["nodes"]
        assert management.get("/pools/default/b/default")["nodesExt"][0]["nodeUUID"]
        assert node["nodeUUID"] == uuid
    with TemporaryProducer(vbuckets=2, data=tmp_path / "two") as other:
        assert Management(other).get("/pools")["uuid"] != uuid


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"clusterName": "n" * 257}, "256 printable"),
        ({"clusterName": "a\nb"}, "256 printable"),
        ({"clusterName": "a", "memoryQuota": "512"}, "memoryQuota is not known here"),
        ({"memoryQuota": "512"}, "clusterName is missing"),
    ],
)
def test_what_cannot_be_set_of_a_server_is_refused(form: dict[str, str], told: str) -> None:
    with TemporaryProducer(vbuckets=1) as producer:
        status, sentence = Management(producer).ask("POST", "/pools/default", **form)
        assert (status, told in sentence) == (400, True), sentence
        assert Management(producer).get("/pools/default")["clusterName"] == "upriver"


@pytest.mark.parametrize("bucket", ["default", ""])
def test_a_brief_notification_has_the_version_of_the_map_alone(bucket: str) -> None:
    """A client that negotiated it stops asking, so one without a bucket is told as well."""
    with TemporaryProducer(vbuckets=2) as producer, Talk(producer) as talk:
        talk.hello(Feature.SELECT_BUCKET, Feature.JSON, Feature.CLUSTERMAP_NOTIFICATION, *MAPS)
        if bucket:
            assert talk.ask(kv.SelectBucket(bucket=bucket)).status is Status.SUCCESS
        known = json.loads(talk.ask_raw(0xB5).value)
        assert Management(producer).ask("POST", "/pools/default", clusterName="n")[0] == 200
        packet = talk.packet()
        size = len(bucket)
        assert packet[:16] == bytes((0x82, 0x01, 0, size, 16, 0, 0, 0)) + struct.pack(
            ">II", 16 + size, 0
        )
        epoch, rev = struct.unpack_from(">QQ", packet, 24)
        assert (epoch, rev > known["rev"], packet[40:]) == (1, True, bucket.encode())
        # The client then asks for what is newer than its own map, and once more.
        newer = talk.ask_raw(0xB5, extras=struct.pack(">QQ", 1, known["rev"])).value
        assert (json.loads(newer)["rev"], json.loads(newer)["clusterName"]) == (rev, "n")
        assert talk.ask_raw(0xB5, extras=struct.pack(">QQ", epoch, rev)).value == b""


def test_a_bucket_that_may_be_compressed_says_so() -> None:
    form = {"name": "two", "ramQuota": 100, "bucketType": "couchbase", "flushEnabled": 1}
    with TemporaryProducer(vbuckets=1) as producer:
        management = Management(producer)
        made = management.ask("POST", "/pools/default/buckets", compressionMode="active", **form)
        assert made[0] == 202
        assert management.get("/pools/default/buckets/two")["compressionMode"] == "active"
        status, _ = management.ask("POST", "/pools/default/buckets/two", compressionMode="passive")
        assert status == 200
        assert management.get("/pools/default/buckets/two")["compressionMode"] == "passive"
        status, told = management.ask("POST", "/pools/default/buckets/two", compressionMode="off")
        assert (status, told) == (400, "compressionMode can only be active or passive here")
