"""What is tried again and what is final, decided without a socket: conversations over a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from upriver.consumer.topology.cluster_view import ClusterConversation, Pause, Topology, Visit
from upriver.consumer.topology.request_routing import (
    ask_copies,
    ask_owners,
    refusal_of,
    renew_map,
)
from upriver.consumer.transport.connection_string import Address, Source
from upriver.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionFailed,
    NotADcpServer,
    RemoteProtocolError,
    Status,
    StatusError,
    UpriverError,
)
from upriver.session.conversation import Conversation

_T = TypeVar("_T")

A, B, C = (Address("127.0.0.1", port) for port in (1, 2, 3))
GONE = ConnectionFailed("cannot be reached", "is it there?", where="somewhere")


def cluster(
    *rows: int, rev: int = 1, nodes: tuple[Address, ...] = (A, B), name: str = "b"
) -> bytes:
    servers = {"serverList": [str(node) for node in nodes], "vBucketMap": [[row] for row in rows]}
    return json.dumps({"rev": rev, "name": name, "vBucketServerMap": servers}).encode()


class World:
    """Plays the nodes: what each visit comes to, and a clock that pauses move."""

    def __init__(self, *hosts: Address, answer: Callable[[Address], Any]) -> None:
        self.now = 0.0
        #: What nodes send that are asked for the map; None for what they say to anything.
        self.map: bytes | None = None
        self.visited: list[Address] = []
        self.topology = Topology(Source(hosts, "b"), clock=lambda: self.now)
        self._answer = answer

    def run(self, conversation: ClusterConversation[_T]) -> _T:
        try:
            step = next(conversation)
            while True:
                if isinstance(step, Pause):
                    self.now += step.seconds
                    step = conversation.send([])
                else:
                    step = conversation.send([self._visit(visit) for visit in step])
        except StopIteration as done:
            result: _T = done.value
            return result

    def _visit(self, visit: Visit) -> list[Any] | UpriverError:
        self.visited.append(visit.address)
        about_map = any(getattr(talk, "__name__", "") == "cluster_map" for talk in visit.talks)
        for talk in visit.talks:
            talk.close()
        said = self._answer(visit.address)
        if about_map and self.map is not None and not isinstance(said, UpriverError):
            return [self.map]
        return said if isinstance(said, UpriverError) else [said] * len(visit.talks)


def no_question(vbuckets: list[int]) -> tuple[Conversation[dict[int, int]], ...]:
    def never() -> Conversation[dict[int, int]]:
        raise AssertionError(vbuckets)
        yield  # type: ignore[unreachable]  # which makes it a generator

    return (never(),)


def test_the_connected_are_asked_first_then_the_map_s_then_the_named() -> None:
    answers: dict[Address, Any] = {A: cluster(0, 1)}
    world = World(A, answer=lambda address: answers.get(address, GONE))
    assert world.run(renew_map(world.topology)) == A
    answers.clear()
    with pytest.raises(ConnectionFailed, match="before it"):
        world.run(renew_map(world.topology, [C]))
    assert world.visited == [A, C, A, B]


def test_a_cluster_outlives_the_host_that_was_named() -> None:
    answers: dict[Address, Any] = {A: cluster(0, 1)}
    world = World(A, answer=lambda address: answers.get(address, GONE))
    world.run(renew_map(world.topology))
    answers.clear()
    answers[B] = cluster(1, 1, rev=2)
    assert world.run(renew_map(world.topology)) == B
    assert world.topology.owner(0) == B


def test_a_wrong_password_is_final_and_nobody_else_is_asked() -> None:
    wrong = AuthenticationFailed("authentication failed", "check it")
    world = World(A, B, answer=lambda address: wrong)
    with pytest.raises(AuthenticationFailed):
        world.run(renew_map(world.topology, patience=100))
    assert world.visited == [A]


def test_patience_is_for_nodes_that_may_come_back() -> None:
    world = World(A, answer=lambda address: GONE if world.now < 3 else cluster(0, nodes=(A,)))
    world.run(renew_map(world.topology, patience=10))
    assert world.now >= 3
    assert len(world.visited) > 2
    world = World(A, answer=lambda address: GONE)
    with pytest.raises(ConnectionFailed):
        world.run(renew_map(world.topology, patience=10))
    assert world.now == pytest.approx(10)


def test_another_protocol_is_waited_for_only_where_a_node_was_before() -> None:
    stranger = NotADcpServer("speaks HTTP", "check the port", where=str(A))
    world = World(A, answer=lambda address: stranger)
    with pytest.raises(NotADcpServer):
        world.run(renew_map(world.topology, patience=10))
    assert world.now == 0
    answers: list[Any] = [cluster(0, nodes=(A,)), stranger, stranger, cluster(0, nodes=(A,))]
    world = World(A, answer=lambda address: answers.pop(0))
    world.run(renew_map(world.topology))
    world.run(renew_map(world.topology, patience=10))  # its node restarts behind a proxy
    assert answers == []


def test_a_refusal_is_told_before_what_cannot_be_reached() -> None:
    refused = StatusError(Status.NOT_FOUND, request="the map", context="no map yet")
    world = World(A, B, answer=lambda address: refused if address == A else GONE)
    with pytest.raises(
        ConnectionFailed, match=r"NOT_FOUND .before it, somewhere cannot be"
    ) as caught:
        world.run(renew_map(world.topology))
    assert refusal_of(caught.value) is refused


def test_a_refused_map_is_an_error_with_its_status() -> None:
    refused = StatusError(Status.NOT_FOUND, request="the map", context="no map yet")
    world = World(A, answer=lambda address: refused)
    with pytest.raises(ConnectionFailed, match="refused to send the map, with NOT_FOUND"):
        world.run(renew_map(world.topology))


def test_maps_of_others_and_older_ones_are_not_believed() -> None:
    world = World(A, answer=lambda address: None)
    world.topology.learn_map(cluster(0, 1, rev=5), A)
    world.topology.learn_map(cluster(1, 1, rev=4), A)
    assert world.topology.owner(0) == A
    with pytest.raises(RemoteProtocolError, match="map of the bucket 'other'"):
        world.topology.learn_map(cluster(0, 1, rev=6, name="other"), A)
    with pytest.raises(ConfigError, match="had 2 vbuckets and now has 3"):
        world.topology.learn_map(cluster(0, 1, 1, rev=6), A)


def owners_world(answers: dict[Address, Any]) -> World:
    world = World(A, answer=lambda address: answers.get(address, GONE))
    world.topology.learn_map(cluster(0, 1), A)
    world.topology.map_is_old = False
    return world


def test_every_owner_is_asked_for_its_vbuckets() -> None:
    world = owners_world({A: {0: 10}, B: {1: 20}})
    assert world.run(ask_owners(world.topology, None, no_question)) == {0: 10, 1: 20}
    assert world.visited == [A, B]


def test_a_part_is_enough_only_for_those_who_say_so() -> None:
    world = owners_world({A: {0: 10}})
    assert world.run(ask_owners(world.topology, None, no_question, partial_after=0)) == {0: 10}
    world = owners_world({A: {0: 10}})
    with pytest.raises(ConnectionFailed):
        world.run(ask_owners(world.topology, None, no_question))


def test_a_part_is_waited_for_less_long_than_any_answer() -> None:
    begins = {A: 0.0, B: 99.0}
    world = World(A, answer=lambda node: {0: 10} if world.now >= begins[node] else GONE)
    world.map = cluster(0, 1)

    def ask() -> dict[int, int]:
        question = ask_owners(
            world.topology, None, no_question, patience=50, partial_after=3, connected=[A]
        )
        return world.run(question)

    assert ask() == {0: 10}
    assert world.now == pytest.approx(3)
    world.now, begins[A] = 0.0, 20.0
    assert ask() == {0: 10}
    assert world.now >= 20
    world.now, begins[A] = 0.0, 99.0
    with pytest.raises(ConnectionFailed):
        ask()
    assert world.now == pytest.approx(50)


def test_a_refusal_is_never_taken_for_nothing_there() -> None:
    refused = StatusError(Status.NO_ACCESS, request="the high seqnos")
    world = owners_world({A: {0: 10}, B: refused})
    with pytest.raises(StatusError, match="the high seqnos was refused with NO_ACCESS"):
        world.run(ask_owners(world.topology, None, no_question, partial_after=100, patience=100))
    assert world.now == 0


def test_a_whole_answer_has_every_vbucket_or_is_an_error() -> None:
    answers: dict[Address, Any] = {A: {0: 10}, B: {}}
    world = owners_world(answers)
    assert world.run(ask_owners(world.topology, None, no_question)) == {0: 10}
    world = owners_world(answers)
    with pytest.raises(ConnectionFailed, match="vbucket 1 of b on no node"):
        world.run(ask_owners(world.topology, None, no_question, whole=True))


def copies_world(answers: dict[Address, Any]) -> World:
    """A cluster with vbucket 0 at A and B, 1 at A, and 2 at no node."""
    world = World(A, answer=lambda address: answers.get(address, GONE))
    servers = {"serverList": [str(A), str(B)], "vBucketMap": [[0, 1], [0, -1], [-1, -1]]}
    world.topology.learn_map(json.dumps({"rev": 1, "vBucketServerMap": servers}).encode(), A)
    return world


def copy_question(vbucket: int) -> Conversation[int]:
    raise AssertionError(vbucket)
    yield  # type: ignore[unreachable]  # which makes it a generator


def test_every_copy_is_asked() -> None:
    world = copies_world({A: 7, B: 5})
    assert world.run(ask_copies(world.topology, range(3), copy_question)) == {0: [7, 5], 1: [7]}
    assert world.visited == [A, B]


def test_a_vbucket_is_left_out_unless_all_its_copies_answer() -> None:
    world = copies_world({A: 7})
    assert world.run(ask_copies(world.topology, range(3), copy_question)) == {1: [7]}
    refused = StatusError(Status.NO_ACCESS, request="what is persisted")
    world = copies_world({A: 7, B: refused})
    with pytest.raises(StatusError):
        world.run(ask_copies(world.topology, range(3), copy_question))
