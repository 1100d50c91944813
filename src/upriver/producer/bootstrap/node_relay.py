"""Relays HTTP requests of clients to other nodes of the cluster, over their management ports.

A request that concerns every node, such as a flush, is relayed to all of them. A change that one
node must decide, such as the next manifest uid, is relayed to the first node of the map. A relayed
request is marked, so that it is not relayed again.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from .http_messages import HttpRefusal, HttpRequest, HttpResponse

_MARK: Final = "x-upriver-passed-on"
_PASSED_ON_HEADERS: Final = frozenset({"authorization", "content-type"})
#: Seconds to wait for the response of another node.
_PATIENCE: Final = 30.0
#: Bytes of a response that are read: a uid or an error.
_MAX_ANSWER: Final = 64 * 1024


def was_passed_on(request: HttpRequest) -> bool:
    return _MARK in request.headers


def is_first(terse: Mapping[str, Any]) -> bool:
    """Whether the node that sends this map is the first node in it."""
    return bool(terse["nodesExt"][0].get("thisNode"))


def pass_to_first(request: HttpRequest, terse: Mapping[str, Any]) -> HttpResponse:
    """Relays a request to the first node of the map and returns its response."""
    return _ask(request, terse["nodesExt"][0])


def pass_on(request: HttpRequest, terse: Mapping[str, Any]) -> None:
    """Relays a request to every other node. Fails if one of them fails."""
    for node in terse["nodesExt"]:
        if not node.get("thisNode"):
            answer = _ask(request, node)
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise HttpRefusal(
                    HTTPStatus.BAD_GATEWAY,
                    f"{_address(node)} answered {answer.status.value}: {answer.body[:500]!r}",
                )


def share(request: HttpRequest, terse: Mapping[str, Any]) -> None:
    """Relays a request to every other node. One that is down is skipped: it learns of it later."""
    for node in terse["nodesExt"]:
        if not node.get("thisNode"):
            with contextlib.suppress(HttpRefusal):
                _ask(request, node)


def _ask(request: HttpRequest, node: Mapping[str, Any]) -> HttpResponse:
    host, port = node.get("hostname", ""), node["services"].get("mgmt", 0)
    headers = {name: value for name, value in request.headers.items() if name in _PASSED_ON_HEADERS}
    connection = http.client.HTTPConnection(host, port, timeout=_PATIENCE)
    try:
        path = "/" + "/".join(quote(part, safe="") for part in request.path)
        connection.request(request.method, path, request.body, {**headers, _MARK: "1"})
        answer = connection.getresponse()
        return HttpResponse(HTTPStatus(answer.status), answer.read(_MAX_ANSWER))
    except (OSError, ValueError, http.client.HTTPException) as problem:
        raise HttpRefusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the node {_address(node)} cannot be reached: {problem!r}",
        ) from None
    finally:
        connection.close()


def _address(node: Mapping[str, Any]) -> str:
    return f"{node.get('hostname', '')}:{node['services'].get('mgmt', 0)}"
