"""What is wrong with a consumer's settings is said with the option, its value and its limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from upriver.consumer import AsyncConsumer, Consumer, ConsumerSettings
from upriver.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"buffer": 7}, "buffer is 7; it must be 1024 to 2147483648 bytes"),
        ({"noop_interval": 0.01}, "noop_interval is 0.01; it must be 0.1 seconds or more"),
        ({"connect_timeout": 0}, "connect_timeout is 0; it must be more than 0 seconds"),
        ({"answer_timeout": -1.5}, "answer_timeout is -1.5; it must be more than 0 seconds"),
        ({"retry_first": 0}, "retry_first is 0; it must be more than 0 seconds"),
        ({"retry_most": 0}, "retry_most is 0; it must be more than 0 seconds"),
        ({"map_interval": 0}, "map_interval is 0; it must be more than 0 seconds"),
        ({"persisted_everywhere": 0}, "persisted_everywhere is 0; it must be more than 0 seconds"),
        ({"priority": "urgent"}, "priority is 'urgent'; give low, medium or high"),
        ({"backfill_order": "up"}, "backfill_order is 'up'; give round-robin or sequential"),
        ({"name": "n" * 201}, "name has 201 bytes; the name of a DCP connection has at most 200"),
        ({"vbuckets": frozenset()}, "vbuckets is empty; give at least one vbucket"),
        ({"dialect": "003"}, "dialect is '003'; give one of auto, dcp, 001, 000, 002"),
        ({"dialect": "001", "xattrs": True}, "dialect is '001', a draft that has no collections"),
        ({"scope": "s", "collections": ("s.c",)}, "collections and scope contradict each other"),
    ],
)
def test_the_option_and_its_value_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        ConsumerSettings(**options)


def test_a_text_is_one_collection() -> None:
    settings: Any = {"collections": "shop.orders"}
    assert ConsumerSettings(**settings).collections == ("shop.orders",)


@pytest.mark.parametrize("client", [Consumer, AsyncConsumer])
@pytest.mark.parametrize("place", ["here.json", Path("here.json")])
def test_a_path_is_no_checkpoint(client: Any, place: str | Path) -> None:
    said = "checkpoint is the path 'here.json'; give FileCheckpoint('here.json')"
    with pytest.raises(ConfigError, match=re.escape(said)):
        client("couchbase://localhost/default", checkpoint=place)
