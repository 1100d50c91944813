"""Which right a command needs, for every command there is."""

from __future__ import annotations

from upriver.producer.keyvalue import ADMINISTERS, READS, STREAMS, WRITES
from upriver.wire.protocol_enums import Command

#: What everybody may do: finding out who one is and where things are.
FREE = {
    Command.QUIT,
    Command.QUITQ,
    Command.NOOP,
    Command.VERSION,
    Command.HELLO,
    Command.SASL_LIST_MECHANISMS,
    Command.SASL_AUTH,
    Command.SASL_STEP,
    Command.LIST_BUCKETS,
    Command.SELECT_BUCKET,
    Command.GET_CLUSTER_CONFIG,
    Command.GET_ERROR_MAP,
}


def test_every_command_of_a_client_needs_a_right_or_none() -> None:
    granted = READS | WRITES | ADMINISTERS | STREAMS
    asked = {command for command in Command if not command.from_server}
    assert asked - granted == FREE | {Command.RESPONSE_ERROR}
    assert not granted & FREE


def test_reading_changes_nothing_and_writing_is_no_administration() -> None:
    both = READS & WRITES
    assert Command.GET not in WRITES
    assert not any(command.name.startswith(("SET", "DELETE", "ADD")) for command in READS)
    assert Command.FLUSH not in WRITES
    assert both <= STREAMS | {Command.OBSERVE}
