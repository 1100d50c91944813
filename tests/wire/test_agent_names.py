"""What clients call themselves in HELLO."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.wire.agent_names import MAX_KEY, AgentName

IDS = "528dd7a586fc062c/b8bec9cb1b547477"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        pytest.param(
            f'{{"a":"gocbcore/v10.9.1 try","i":"{IDS}"}}',
            AgentName("gocbcore/v10.9.1 try", IDS),
            id="gocbcore",
        ),
        pytest.param(
            f'java-dcp-client:{{"i":"{IDS}","a":"java-dcp-client/0.57.0 (Java/17)"}}',
            AgentName("java-dcp-client/0.57.0 (Java/17)", IDS),
            id="java-dcp-client",
        ),
        pytest.param("mchello v1.0", AgentName("mchello v1.0"), id="mchello"),
        pytest.param('{"a":"x"}', AgentName("x"), id="no id"),
        pytest.param('{"a":"x","i":7}', AgentName("x"), id="an id that is none"),
        pytest.param('{"i":"x"}', AgentName('{"i":"x"}'), id="no agent"),
        pytest.param('"x"', AgentName('"x"'), id="no object"),
        pytest.param("a:b", AgentName("a:b"), id="a colon"),
        pytest.param("", AgentName(""), id="nothing"),
    ],
)
def test_names_of_real_clients(key: str, name: AgentName) -> None:
    assert AgentName.parse(key) == name


def test_a_name_that_nests_without_end_is_only_text() -> None:
    key = '{"a":' * 10_000
    assert AgentName.parse(key) == AgentName(key)


@given(st.text(max_size=40), st.text(max_size=10))
def test_a_name_survives_the_wire(agent: str, connection_id: str) -> None:
    name = AgentName(agent, connection_id)
    read = AgentName.parse(name.key)
    assert agent.startswith(read.agent)
    assert read.connection_id == connection_id


@given(st.text(min_size=MAX_KEY))
def test_a_long_agent_is_cut(agent: str) -> None:
    key = AgentName(agent, IDS).key
    assert len(key.encode()) <= MAX_KEY
    assert json.loads(key)["i"] == IDS
