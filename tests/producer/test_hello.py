"""What a server agrees to in HELLO."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.producer.bootstrap.hello import RULES, ServerFeatures, When, accept
from upriver.wire.enum_codes import FEATURES
from upriver.wire.protocol_enums import Feature

SERVER = ServerFeatures()
OFFERS = st.lists(st.sampled_from(Feature) | st.integers(0x20, 0xFFFF), max_size=40)


def offered(numbers: str) -> tuple[Feature | int, ...]:
    return tuple(FEATURES.names.get(int(number, 16), int(number, 16)) for number in numbers.split())


def accepted(numbers: str, server: ServerFeatures = SERVER) -> str:
    return " ".join(f"{FEATURES.dump(feature):02x}" for feature in accept(offered(numbers), server))


@pytest.mark.parametrize(
    ("offer", "answer"),
    [
        pytest.param(
            "03 06 07 08 0b 0c 10 0f 11 15 12 17 14 1c 21 0e 0d 1e 0a 04",
            "03 06 07 08 0b 0c 10 15 12 17 14 1c 0d 0a 04",
            id="the Python SDK",
        ),
        pytest.param("06 07 08 0c 0d", "06 07 08 0c 0d", id="java-dcp-client"),
        pytest.param(
            "06 07 08 0c 0d 12 01 0a", "06 07 08 0c 0d 12 0a", id="java-dcp-client, all of it"
        ),
        pytest.param("01 02 03 04 05", "03 04", id="an old client"),
        pytest.param("", "", id="nothing"),
        pytest.param("ffff 0020 07 0009", "07", id="what nobody knows"),
        pytest.param("07 07 06 07", "07 06", id="each once"),
    ],
)
def test_offers_of_real_clients(offer: str, answer: str) -> None:
    assert accepted(offer) == answer


def test_notifications_need_a_server_that_may_speak() -> None:
    assert accepted("0d") == ""
    assert accepted("0d 0c") == accepted("0d 0c") == "0d 0c"


def test_frame_infos_come_before_what_uses_them() -> None:
    assert accepted("14") == ""
    assert accepted("14 10") == "14 10"


def test_of_two_that_contradict_each_other_the_first_wins() -> None:
    assert accepted("03 05") == "03"
    assert accepted("05 03") == "05"


def test_tls_is_a_fact_of_the_connection() -> None:
    assert accepted("02") == ""
    assert accepted("02", ServerFeatures(tls=True)) == "02"


@pytest.mark.parametrize(
    ("server", "offer", "answer"),
    [
        (ServerFeatures(snappy=False), "0a 0b", "0b"),
        (ServerFeatures(collections=False), "12 06", "06"),
        (ServerFeatures(sync_replication=True), "11 10", "11 10"),
        (ServerFeatures(sync_replication=True), "11", ""),
    ],
)
def test_what_a_server_was_set_up_for(server: ServerFeatures, offer: str, answer: str) -> None:
    assert accepted(offer, server) == answer


def test_every_feature_has_a_rule_and_a_reason() -> None:
    assert set(RULES) == set(Feature)
    assert all(rule.reason for rule in RULES.values())
    for feature, rule in RULES.items():
        if rule.when is When.IF_SET_UP:
            assert hasattr(SERVER, feature.name.lower())
        if rule.needs is not None:
            assert RULES[rule.needs].when is When.ALWAYS
        if rule.excludes is not None:
            assert RULES[rule.excludes].excludes is feature


@given(OFFERS)
def test_the_answer_is_part_of_the_offer_in_its_order(offer: list[Feature | int]) -> None:
    answer = accept(offer, SERVER)
    assert len(set(answer)) == len(answer)
    positions = [offer.index(feature) for feature in answer]
    assert positions == sorted(positions)
    assert accept(answer, SERVER) == answer
