"""State tables of a stream: one for the producer's side, one for the consumer's.

A table gives, for a state and an event, the state that follows. Only these tables change states;
the diagrams in docs/reference/stream-states.md are drawn from them. An event that a state does not
have is a fault of Upriver, never of a peer: what a peer may send in a state is checked before.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, TypeVar

from ..errors import LocalProtocolError


class ProducerState(Enum):
    """What the producer does with a stream."""

    #: It sends what the vbucket had when the stream was opened.
    BACKFILLING = auto()
    #: It sends changes as they are written.
    IN_MEMORY = auto()
    #: A takeover: it has a vbucket state to send.
    TAKEOVER_SEND = auto()
    #: A takeover: the consumer has to acknowledge the state.
    TAKEOVER_WAIT = auto()
    #: The stream has ended.
    DEAD = auto()


class ProducerEvent(Enum):
    #: Everything that was stored is sent.
    CAUGHT_UP = auto()
    #: Everything that was stored is sent on a stream that takes the vbucket over.
    CAUGHT_UP_FOR_TAKEOVER = auto()
    #: A vbucket state was sent to the consumer.
    STATE_SENT = auto()
    #: The consumer is pending, and the producer's own copy is dead on disk.
    HANDED_OVER = auto()
    #: The end was reached, a side closed the stream, or the vbucket changed.
    ENDED = auto()


class ConsumerState(Enum):
    """What the consumer waits for."""

    #: Nothing was sent.
    NEW = auto()
    #: It asked for the failover log.
    ASKED_LOG = auto()
    #: It requested the stream.
    REQUESTED = auto()
    #: Changes arrive.
    OPEN = auto()
    #: Changes arrive, and it asked for the failover log again: drafts 002 and 000.
    CHECKING = auto()


class ConsumerEvent(Enum):
    #: The position has to be compared with the failover log, first or after a rollback.
    ASK_LOG = auto()
    #: The position is one that the log allows, or the beginning.
    REQUEST = auto()
    #: The producer accepted the stream.
    ACCEPTED = auto()
    #: The producer accepted the stream without its failover log.
    CHECK_LOG = auto()
    #: The log is the one from before the request.
    LOG_UNCHANGED = auto()


PRODUCER: Final[Mapping[tuple[ProducerState, ProducerEvent], ProducerState]] = {
    (ProducerState.BACKFILLING, ProducerEvent.CAUGHT_UP): ProducerState.IN_MEMORY,
    (ProducerState.IN_MEMORY, ProducerEvent.CAUGHT_UP): ProducerState.IN_MEMORY,
    (ProducerState.BACKFILLING, ProducerEvent.CAUGHT_UP_FOR_TAKEOVER): ProducerState.TAKEOVER_SEND,
    (ProducerState.IN_MEMORY, ProducerEvent.CAUGHT_UP_FOR_TAKEOVER): ProducerState.TAKEOVER_SEND,
    (ProducerState.TAKEOVER_SEND, ProducerEvent.STATE_SENT): ProducerState.TAKEOVER_WAIT,
    (ProducerState.TAKEOVER_WAIT, ProducerEvent.HANDED_OVER): ProducerState.TAKEOVER_SEND,
    **{(state, ProducerEvent.ENDED): ProducerState.DEAD for state in ProducerState},
}

CONSUMER: Final[Mapping[tuple[ConsumerState, ConsumerEvent], ConsumerState]] = {
    (ConsumerState.NEW, ConsumerEvent.ASK_LOG): ConsumerState.ASKED_LOG,
    (ConsumerState.NEW, ConsumerEvent.REQUEST): ConsumerState.REQUESTED,
    (ConsumerState.ASKED_LOG, ConsumerEvent.REQUEST): ConsumerState.REQUESTED,
    (ConsumerState.REQUESTED, ConsumerEvent.ASK_LOG): ConsumerState.ASKED_LOG,
    (ConsumerState.REQUESTED, ConsumerEvent.REQUEST): ConsumerState.REQUESTED,
    (ConsumerState.REQUESTED, ConsumerEvent.ACCEPTED): ConsumerState.OPEN,
    (ConsumerState.OPEN, ConsumerEvent.CHECK_LOG): ConsumerState.CHECKING,
    (ConsumerState.CHECKING, ConsumerEvent.LOG_UNCHANGED): ConsumerState.OPEN,
}

_State = TypeVar("_State", bound=Enum)
_Event = TypeVar("_Event", bound=Enum)


def next_state(
    table: Mapping[tuple[_State, _Event], _State], state: _State, event: _Event
) -> _State:
    """Returns the state that follows. `LocalProtocolError` if the table has none."""
    following = table.get((state, event))
    if following is None:
        raise LocalProtocolError(f"a stream in the state {state.name} has no event {event.name}")
    return following
