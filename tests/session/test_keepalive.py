"""Noops and patience."""

from __future__ import annotations

from upriver.session.keepalive import FIRST_OPAQUE, ProducerKeepalive, Silence


def enabled(interval: float = 20.0, idle_timeout: float = 0.0) -> ProducerKeepalive:
    keepalive = ProducerKeepalive(now=0.0, idle_timeout=idle_timeout)
    keepalive.enabled = True
    keepalive.interval = interval
    return keepalive


def test_it_is_off_until_asked_for() -> None:
    keepalive = ProducerKeepalive(now=0.0)
    assert keepalive.due(1e9) is None
    assert not keepalive.is_gone(1e9)


def test_one_question_at_a_time_with_opaques_counting_up() -> None:
    keepalive = enabled()
    assert keepalive.due(19.9) is None
    assert keepalive.due(20.0) == FIRST_OPAQUE
    assert keepalive.due(60.0) is None
    assert keepalive.answered(FIRST_OPAQUE)
    assert keepalive.due(60.0) == FIRST_OPAQUE + 1


def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    keepalive = enabled()
    assert not keepalive.answered(FIRST_OPAQUE)
    assert keepalive.due(20.0) == FIRST_OPAQUE
    assert not keepalive.answered(FIRST_OPAQUE + 1)
    assert keepalive.answered(FIRST_OPAQUE)
    assert not keepalive.answered(FIRST_OPAQUE)


def test_a_peer_is_given_up_after_the_longer_of_both_patiences() -> None:
    assert not enabled(20.0, idle_timeout=360.0).is_gone(359.9)
    assert enabled(20.0, idle_timeout=360.0).is_gone(360.0)
    assert not enabled(300.0, idle_timeout=360.0).is_gone(599.9)
    assert enabled(300.0, idle_timeout=360.0).is_gone(600.0)


def test_anything_from_the_peer_counts_as_life() -> None:
    keepalive = enabled(20.0)
    keepalive.heard(39.0)
    assert not keepalive.is_gone(78.9)
    assert keepalive.is_gone(79.0)


def test_a_consumer_waits_for_two_intervals() -> None:
    silence = Silence(10.0, now=0.0)
    assert not silence.is_gone(19.9)
    assert silence.is_gone(20.0)
    silence.heard(20.0)
    assert not silence.is_gone(39.9)
