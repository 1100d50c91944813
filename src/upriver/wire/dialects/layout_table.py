"""A dialect's table of layouts, indexed for decoding and for encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ...errors import Status
from ..layout import Layout
from ..messages import Message
from ..protocol_enums import Command

#: Requests that servers send to clients; they have separate magics and opcodes.
SERVER_COMMANDS: Final = frozenset({Command.CLUSTERMAP_CHANGED})


class Table:
    """Requests by opcode, responses by opcode and status, both by message."""

    def __init__(
        self,
        requests: Iterable[Layout],
        responses: Iterable[Layout],
        statuses: Mapping[int, Status],
        *,
        status_aliases: Mapping[tuple[Command, int], Status] | None = None,
    ) -> None:
        #: By (sent by a server, opcode).
        self.requests: dict[tuple[bool, int], list[Layout]] = {}
        self.responses: dict[tuple[bool, int, Status], list[Layout]] = {}
        self.of_message: dict[type[Message], list[Layout]] = {}
        self.commands: dict[tuple[bool, int], Command] = {}
        self.opcodes: dict[Command, int] = {}
        self.statuses = statuses
        self.status_numbers = {status: number for number, status in statuses.items()}
        #: Status numbers with another meaning in the responses to one command.
        self.status_aliases = status_aliases or {}
        for layout in requests:
            key = (layout.command in SERVER_COMMANDS, layout.opcode)
            self.requests.setdefault(key, []).append(layout)
            self.of_message.setdefault(layout.message, []).append(layout)
            self.commands[key] = layout.command
            self.opcodes[layout.command] = layout.opcode
        for layout in responses:
            server = layout.command in SERVER_COMMANDS
            self.responses.setdefault((server, layout.opcode, layout.status), []).append(layout)
            self.of_message.setdefault(layout.message, []).append(layout)

    def extras_sizes(self, command: Command) -> tuple[int, ...]:
        """The lengths of a request's extras in its forms, in the order of the table."""
        return tuple(
            layout.extras.size
            for layouts in self.requests.values()
            for layout in layouts
            if layout.command is command
        )

    def status(self, command: Command | int, number: int) -> Status:
        """The status with this number in a response to a command."""
        if isinstance(command, Command) and (command, number) in self.status_aliases:
            return self.status_aliases[command, number]
        return self.statuses.get(number, Status.UNRECOGNISED)
