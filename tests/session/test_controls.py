"""Every control key answers as real servers answer it."""

from __future__ import annotations

from typing import Any

import pytest

from upriver.errors import Status
from upriver.session.keepalive import ProducerKeepalive
from upriver.session.producer_options import (
    BackfillOrder,
    OutOfOrder,
    ProducerOptions,
    check_open_flags,
    set_control,
)
from upriver.wire.protocol_enums import OpenFlag

OK, INVALID, UNSUPPORTED = Status.SUCCESS, Status.INVALID, Status.NOT_SUPPORTED


def connection(flags: OpenFlag = OpenFlag.PRODUCER, **negotiated: Any) -> ProducerOptions:
    return ProducerOptions(flags=flags, keepalive=ProducerKeepalive(now=0.0), **negotiated)


@pytest.mark.parametrize(
    ("key", "value", "status"),
    [
        ("enable_noop", "true", OK),
        ("enable_noop", "anything", OK),
        ("set_noop_interval", "20", OK),
        ("set_noop_interval", "0.1", OK),
        ("set_noop_interval", "0.09", INVALID),
        ("set_noop_interval", "-5", INVALID),
        ("set_noop_interval", "nan", INVALID),
        ("set_noop_interval", "inf", INVALID),
        ("set_noop_interval", "soon", INVALID),
        ("connection_buffer_size", "0", OK),
        ("connection_buffer_size", "4294967295", OK),
        ("connection_buffer_size", "4294967296", INVALID),
        ("connection_buffer_size", "-1", INVALID),
        ("connection_buffer_size", "1.5", INVALID),
        ("connection_buffer_size", "٣", INVALID),
        ("stream_buffer_size", "1024", UNSUPPORTED),
        ("set_priority", "high", OK),
        ("set_priority", "medium", OK),
        ("set_priority", "low", OK),
        ("set_priority", "urgent", INVALID),
        ("force_value_compression", "true", INVALID),
        ("supports_cursor_dropping", "true", OK),
        ("supports_cursor_dropping_vulcan", "true", OK),
        ("supports_hifi_MFU", "true", OK),
        ("send_stream_end_on_client_close_stream", "true", OK),
        ("enable_expiry_opcode", "true", OK),
        ("enable_stream_id", "true", UNSUPPORTED),
        ("enable_stream_id", "false", INVALID),
        ("enable_sync_writes", "true", OK),
        ("enable_sync_writes", "false", INVALID),
        ("consumer_name", "me", OK),
        ("consumer_name", "", INVALID),
        ("enable_out_of_order_snapshots", "true", OK),
        ("enable_out_of_order_snapshots", "true_with_seqno_advanced", OK),
        ("enable_out_of_order_snapshots", "false", INVALID),
        ("include_deleted_user_xattrs", "true", INVALID),
        ("backfill_order", "round-robin", OK),
        ("backfill_order", "sequential", OK),
        ("backfill_order", "random", INVALID),
        ("v7_dcp_status_codes", "true", OK),
        ("v7_dcp_status_codes", "false", INVALID),
        ("flatbuffers_system_events", "true", OK),
        ("flatbuffers_system_events", "false", INVALID),
        ("change_streams", "true", UNSUPPORTED),
        ("change_streams", "false", INVALID),
        ("max_marker_version", "2.2", UNSUPPORTED),
        ("max_marker_version", "2.0", INVALID),
        ("cache_transfer", "true", UNSUPPORTED),
        ("enable_ext_metadata", "true", INVALID),
        ("enable_value_compression", "true", INVALID),
        ("no_such_key", "true", INVALID),
    ],
)
def test_a_plain_connection(key: str, value: str, status: Status) -> None:
    assert set_control(connection(), key, value) is status


def test_what_was_negotiated_decides() -> None:
    assert set_control(connection(snappy=True), "force_value_compression", "true") is OK
    assert set_control(connection(collections=True), "max_marker_version", "2.2") is OK
    assert set_control(connection(collections=True), "enable_stream_id", "true") is OK
    flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETED_USER_XATTRS
    assert set_control(connection(flags), "include_deleted_user_xattrs", "true") is OK


def test_stream_ids_and_sync_writes_exclude_each_other() -> None:
    first, second = connection(collections=True), connection(collections=True)
    assert set_control(first, "enable_stream_id", "true") is OK
    assert set_control(first, "enable_sync_writes", "true") is UNSUPPORTED
    assert set_control(second, "enable_sync_writes", "true") is OK
    assert set_control(second, "enable_stream_id", "true") is UNSUPPORTED
    assert (second.stream_ids, second.sync_writes) == (False, True)


def test_expirations_need_delete_times() -> None:
    plain = connection()
    set_control(plain, "enable_expiry_opcode", "true")
    assert not plain.expiry_opcode
    timed = connection(OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES)
    set_control(timed, "enable_expiry_opcode", "true")
    assert timed.expiry_opcode
    set_control(timed, "enable_expiry_opcode", "false")
    assert not timed.expiry_opcode


def test_what_is_set_takes_effect() -> None:
    options = connection()
    for key, value in (
        ("enable_noop", "true"),
        ("set_noop_interval", "2.5"),
        ("connection_buffer_size", "4096"),
        ("send_stream_end_on_client_close_stream", "true"),
        ("send_stream_end_on_client_close_stream", "false"),  # cannot be switched off
        ("enable_out_of_order_snapshots", "true_with_seqno_advanced"),
        ("backfill_order", "sequential"),
    ):
        assert set_control(options, key, value) is OK
    assert (options.keepalive.enabled, options.keepalive.interval) == (True, 2.5)
    assert options.window.size == 4096
    assert options.stream_end_on_close
    assert options.out_of_order is OutOfOrder.YES_WITH_SEQNO_ADVANCED
    assert options.backfill_order is BackfillOrder.SEQUENTIAL


@pytest.mark.parametrize(
    ("flags", "right"),
    [
        (0x0, True),
        (0x1, True),
        (0x1 | 0x4 | 0x8 | 0x20 | 0x100 | 0x200, True),
        (0x1 | 0x40, True),
        (0x2, True),
        (0x10, False),
        (0x80, False),
        (0x400, False),
        (0x1 | 0x8 | 0x40, False),
        (0x1 | 0x100, False),
        (0x200, False),
    ],
)
def test_flags_of_open(flags: int, right: bool) -> None:
    assert (check_open_flags(OpenFlag(flags)) == "") is right
