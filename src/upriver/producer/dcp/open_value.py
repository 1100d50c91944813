"""The JSON value of a DCP Open, with which a consumer gives its node name."""

from __future__ import annotations

import json

from ...model import Datatype
from ...wire import messages as m
from ...wire.protocol_enums import OpenFlag


def open_value_problem(request: m.Open) -> str:
    """Returns what is wrong with the value of an Open. Only a consumer may send one."""
    if not request.value:
        return "" if not request.datatype else "a datatype needs a value"
    if request.datatype != Datatype.JSON:
        return "the value must be JSON"
    try:
        content = json.loads(request.value)
    except (ValueError, RecursionError):
        return "the value is not JSON"
    if not isinstance(content, dict):
        return "the value is no JSON object"
    for key, value in content.items():
        if key != "consumer_name":
            return f"{key!r} is no property of a connection"
        if request.flags & OpenFlag.PRODUCER or not isinstance(value, str):
            return "consumer_name is text, and for consumers"
    return ""


def consumer_name(request: m.Open) -> str:
    """Returns the node name of the consumer from the value of an Open, if its manager gave one."""
    return str(json.loads(request.value).get("consumer_name", "")) if request.value else ""
