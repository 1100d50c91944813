"""Every form of every message of every dialect survives encoding and decoding."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import BINARY, DATATYPES, FORMS, U8, U16, U32, U64, message_of

from upriver.errors import Status
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp, Dialect, Draft000, Draft001
from upriver.wire.enum_codes import STATUSES
from upriver.wire.framing import packet_length
from upriver.wire.layout import Layout
from upriver.wire.protocol_enums import Command


def _name(form: tuple[Dialect, Layout]) -> str:
    dialect, layout = form
    flavour = "+collections" if getattr(dialect, "collections", False) else ""
    return f"{dialect.name}{flavour} {layout.message.__name__} {layout.opcode:#04x}"


@pytest.mark.parametrize("form", FORMS, ids=_name)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_encoded_is_decoded(form: tuple[Dialect, Layout], data: st.DataObject) -> None:
    dialect, layout = form
    message = data.draw(message_of(layout, dialect))
    packet = dialect.encode(message)
    assert packet_length(packet) == len(packet)
    assert dialect.decode(packet) == message
    if not isinstance(message, m.Response):
        assert dialect.command_of(message) == layout.command


def test_every_dcp_opcode_has_a_form() -> None:
    opcodes = {layout.opcode for dialect, layout in FORMS if dialect == Dcp()}
    assert set(range(0x50, 0x68)) <= opcodes


@given(
    opaque=U32,
    opcode=U8.filter(lambda number: (False, number) not in Dcp.table.commands),
    vbucket=U16,
    extras=st.binary(max_size=255),
    key=BINARY,
    value=BINARY,
    cas=U64,
    datatype=DATATYPES,
)
def test_unknown_commands_keep_everything_they_had(**values: object) -> None:
    message = m.UnknownCommand(**values)  # type: ignore[arg-type]
    assert Dcp().decode(Dcp().encode(message)) == message


@pytest.mark.parametrize("status", sorted(STATUSES))
def test_every_status_has_a_name_and_survives(status: int) -> None:
    refusal = m.PlainResponse(
        command=Command.NOOP, status=STATUSES[status], value=b'{"error":{}}', opaque=7
    )
    for dialect in (Dcp(), Draft001(), Draft000()):
        packet = dialect.encode(refusal)
        assert int.from_bytes(packet[6:8], "big") == status
        assert dialect.decode(packet) == refusal


def test_a_status_without_a_name_keeps_its_number() -> None:
    refusal = m.PlainResponse(
        command=Command.GET, status=Status.UNRECOGNISED, status_code=0x1234, opaque=7
    )
    assert Dcp().decode(Dcp().encode(refusal)) == refusal


def test_every_status_of_the_library_has_a_number() -> None:
    assert set(STATUSES.values()) == set(Status) - {Status.UNRECOGNISED}
