"""An independent decoder reads what we encode: Wireshark's couchbase dissector, field by field."""

from __future__ import annotations

import json
import shutil
import string
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from captures import SERVER_PORT, pcap, stream
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from strategies import message_of

from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.header import parse_header
from upriver.wire.layout import KeyRule

TSHARK = shutil.which("tshark")
pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")

_CHANGE = {"seqno": "extras_by_seqno", "rev": "extras_rev_seqno"}
_STORED = {"flags": "extras_flags", "expiry": "extras_expiration"}
_COUNTED = {"delta": "extras_delta", "initial": "extras_initial", "expiry": "extras_expiration"}

#: What the dissector calls the attributes of each message it knows.
FIELDS: dict[type[m.Message], dict[str, str]] = {
    m.Open: {"sequence": "extras_seqno", "flags": "extras_flags", "name": "key"},
    m.AddStream: {"flags": "extras_flags"},
    m.AddStreamResponse: {"stream_opaque": "extras_opaque"},
    m.CloseStream: {},
    m.StreamRequest: {
        "flags": "extras_flags",
        "start": "extras_start_seqno",
        "end": "extras_end_seqno",
        "vbuuid": "extras_vbucket_uuid",
        "snapshot_start": "extras_snap_start_seqno",
        "snapshot_end": "extras_snap_end_seqno",
    },
    m.FailoverLogRequest: {},
    m.StreamEnd: {},
    m.SnapshotMarker: {
        "start": "extras_start_seqno",
        "end": "extras_end_seqno",
        "flags": "extras_flags",
        "max_visible_seqno": "extras_max_visible_seqno",
        "high_completed_seqno": "extras_high_completed_seqno",
    },
    m.Mutation: {
        **_CHANGE,
        **_STORED,
        "lock_time": "extras_lock_time",
        "nru": "extras_nru",
        "value": "value",
    },
    m.Deletion: {**_CHANGE, "delete_time": "extras_delete_time"},
    m.Expiration: {**_CHANGE, "delete_time": "extras_delete_time"},
    m.SetStreamState: {},
    m.StreamNoop: {},
    m.BufferAck: {"size": "extras_bytes_to_ack"},
    m.Control: {"key": "key", "value": "value"},
    m.Prepare: {
        **_CHANGE,
        **_STORED,
        "lock_time": "extras_lock_time",
        "nru": "extras_nru",
        "deleted": "extras_deleted",
        "value": "value",
    },
    m.SeqnoAcknowledged: {"prepared_seqno": "extras_by_seqno"},
    m.Commit: {"prepared_seqno": "extras_by_seqno_prepared", "commit_seqno": "extras_by_seqno"},
    m.Abort: {"prepared_seqno": "extras_by_seqno_prepared", "abort_seqno": "extras_by_seqno_abort"},
    m.SeqnoAdvanced: {"seqno": "extras_by_seqno"},
    m.OsoSnapshot: {"flags": "extras_dcp_oso_snapshot_flags"},
    m.CollectionCreated: {"seqno": "extras_by_seqno"},
    m.ScopeCreated: {"seqno": "extras_by_seqno"},
    kv.Get: {},
    kv.Set: {**_STORED, "value": "value"},
    kv.Add: {**_STORED, "value": "value"},
    kv.Replace: {**_STORED, "value": "value"},
    kv.Append: {"value": "value"},
    kv.Delete: {},
    kv.Increment: _COUNTED,
    kv.Decrement: _COUNTED,
    kv.Touch: {},
    kv.GetAndTouch: {},
    kv.Noop: {},
    kv.Version: {},
    kv.SelectBucket: {"bucket": "key"},
    kv.SaslListMechanisms: {},
    kv.GetManifest: {},
    kv.ObserveSeqno: {"vbuuid": "observe_vbucket_uuid"},
    kv.ObserveSeqnoResponse: {
        "vbuuid": "observe_vbucket_uuid",
        "persisted_seqno": "observe_last_persisted_seqno",
        "current_seqno": "observe_current_seqno",
        "old_vbuuid": "observe_old_vbucket_uuid",
        "old_seqno": "observe_last_received_seqno",
    },
}
_READABLE = st.text(string.ascii_letters + string.digits, min_size=1, max_size=20)
_HEADER = ("magic", "opcode", "key_length", "extras_length", "datatype", "total_bodylength", "cas")


def dissected(packets: list[bytes], directory: Path) -> list[dict[str, Any]]:
    """What tshark says of each packet."""
    capture = directory / "packets.pcap"
    capture.write_bytes(pcap(stream(packets)))
    command = [str(TSHARK), "-r", str(capture), "-d", f"tcp.port=={SERVER_PORT},couchbase"]
    command += ["-T", "ek", "-J", "couchbase"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    rows = [json.loads(line) for line in output.splitlines() if '"timestamp"' in line]
    layers = [row["layers"]["couchbase"] for row in rows]
    prefix = "couchbase_couchbase_"
    return [{key.removeprefix(prefix): value for key, value in row.items()} for row in layers]


def number(shown: object) -> int:
    return int(str(shown), 0)


def readable(message: m.Message, draw: Callable[[st.SearchStrategy[str]], str]) -> m.Message:
    """The same message with text where tshark prints text, and nothing it would uncompress."""
    changes: dict[str, Any] = {}
    for name in ("key", "value", "name", "bucket"):
        content = getattr(message, name, None)
        if isinstance(content, bytes):
            changes[name] = draw(_READABLE).encode()
        elif isinstance(content, str):
            changes[name] = draw(_READABLE)
    if isinstance(message, m.Deletion):
        changes["value"] = b""
    if isinstance(message, m.Open):
        changes["value"] = b""
    if hasattr(message, "datatype"):
        changes["datatype"] = type(message.datatype)(0)
    return replace(message, frames=(), **changes)


def expected(content: object) -> object:
    if isinstance(content, bytes):
        return content.decode()
    return content if isinstance(content, str) else int(content)  # type: ignore[call-overload]


@pytest.mark.parametrize("collections", [False, True], ids=["no collections", "collections"])
@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_tshark_reads_every_field(collections: bool, tmp_path: Path, data: st.DataObject) -> None:
    dialect = Dcp(collections=collections)
    layouts = [x for kind in FIELDS for x in dialect.table.of_message[kind]]
    messages = [readable(data.draw(message_of(x, dialect)), data.draw) for x in layouts]
    packets = [dialect.encode(message) for message in messages]
    rows = dissected(packets, tmp_path)
    assert len(rows) == len(packets)
    for message, layout, packet, row in zip(messages, layouts, packets, rows, strict=True):
        header = parse_header(packet)
        ours = (
            header.magic,
            header.opcode,
            header.key_length,
            header.extras_length,
            header.datatype,
            header.body_length,
            header.cas,
        )
        assert tuple(number(row[name]) for name in _HEADER) == ours, message
        assert number(row["status" if header.is_response else "vbucket"]) == header.vbucket
        # the dissector prints the opaque, which is nobody's number, in its own byte order
        assert number(row["opaque"]).to_bytes(4, "little") == packet[12:16]
        for attribute, name in FIELDS[type(message)].items():
            content = getattr(message, attribute)
            if content is not None:
                shown = row[name]
                is_text = isinstance(content, str | bytes)
                assert (shown if is_text else number(shown)) == expected(content), message
        if collections and layout.key is KeyRule.DOCUMENT:
            assert number(row["key_collection_id"]) == message.collection  # type: ignore[attr-defined]
            assert row["key_logical_key"] == message.key.decode()  # type: ignore[attr-defined]
        warnings = [key for key in row.get("_ws_expert", {}) if "_warn_" in key]
        assert not warnings, (message, warnings)
