"""The tables by which streams change their state."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import pytest

from upriver.errors import LocalProtocolError
from upriver.session.stream_states import (
    CONSUMER,
    PRODUCER,
    ConsumerEvent,
    ConsumerState,
    ProducerEvent,
    ProducerState,
    next_state,
)


@pytest.mark.parametrize(
    ("table", "first"), [(PRODUCER, ProducerState.BACKFILLING), (CONSUMER, ConsumerState.NEW)]
)
def test_every_state_can_be_reached(
    table: Mapping[tuple[Enum, Enum], Enum], first: ProducerState | ConsumerState
) -> None:
    reached: set[Enum] = {first}
    while more := {then for (state, _), then in table.items() if state in reached} - reached:
        reached |= more
    assert reached == set(type(first))


@pytest.mark.parametrize("event", list(ProducerEvent)[:-1])
def test_nothing_follows_the_end_of_a_stream(event: ProducerEvent) -> None:
    with pytest.raises(LocalProtocolError, match=f"state DEAD has no event {event.name}"):
        next_state(PRODUCER, ProducerState.DEAD, event)


def test_a_takeover_sends_a_state_only_once_it_has_caught_up() -> None:
    with pytest.raises(LocalProtocolError):
        next_state(PRODUCER, ProducerState.BACKFILLING, ProducerEvent.STATE_SENT)
    state = ProducerState.BACKFILLING
    for event in (
        ProducerEvent.CAUGHT_UP_FOR_TAKEOVER,
        ProducerEvent.STATE_SENT,
        ProducerEvent.HANDED_OVER,
        ProducerEvent.STATE_SENT,
        ProducerEvent.ENDED,
    ):
        state = next_state(PRODUCER, state, event)
    assert state is ProducerState.DEAD


def test_a_stream_is_open_only_after_a_request() -> None:
    into_open = {before for (before, _), then in CONSUMER.items() if then is ConsumerState.OPEN}
    assert into_open == {ConsumerState.REQUESTED, ConsumerState.CHECKING}
    assert (ConsumerState.NEW, ConsumerEvent.ACCEPTED) not in CONSUMER
