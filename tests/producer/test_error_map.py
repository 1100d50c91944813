"""The error map, as clients of either version read it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from upriver.errors import Status
from upriver.producer.bootstrap.error_map import ERRORS, error_map
from upriver.wire.enum_codes import STATUSES

#: Every attribute that clients know.
VERSION_1 = {
    "success",
    "item-only",
    "invalid-input",
    "fetch-config",
    "conn-state-invalidated",
    "auth",
    "special-handling",
    "support",
    "temp",
    "internal",
    "retry-now",
    "retry-later",
    "subdoc",
    "dcp",
    "auto-retry",
    "item-locked",
    "item-deleted",
}
VERSION_2 = VERSION_1 | {"rate-limit", "system-constraint", "no-retry"}


def read(version: int) -> dict[str, Any]:
    document = error_map(version)
    assert document is not None
    loaded: dict[str, Any] = json.loads(document)
    return loaded


@pytest.mark.parametrize(("version", "known"), [(1, VERSION_1), (2, VERSION_2)])
def test_every_status_with_a_number_is_explained(version: int, known: set[str]) -> None:
    document = read(version)
    assert document["version"] == version
    assert document["revision"] >= 1
    assert {int(number, 16) for number in document["errors"]} == set(STATUSES)
    for error in document["errors"].values():
        assert set(error) == {"name", "desc", "attrs"}
        assert error["name"]
        assert error["desc"]
        assert set(error["attrs"]) <= known


def test_numbers_are_written_as_servers_write_them() -> None:
    errors = read(2)["errors"]
    assert errors["0"]["name"] == "SUCCESS"
    assert errors["1f"]["name"] == "AUTH_STALE"
    assert "0x1F" not in errors
    assert "1F" not in errors


@pytest.mark.parametrize(
    ("status", "attributes"),
    [
        (Status.SUCCESS, {"success"}),
        (Status.NOT_MY_VBUCKET, {"fetch-config", "invalid-input"}),
        (Status.LOCKED, {"item-locked", "item-only", "retry-now"}),
        (Status.AUTH_ERROR, {"auth", "conn-state-invalidated"}),
        (Status.ROLLBACK, {"dcp", "special-handling"}),
        (Status.NO_MEMORY, {"temp", "retry-later"}),
        (Status.TEMPORARY_FAILURE, {"temp", "retry-now"}),
        (Status.UNKNOWN_COMMAND, {"support"}),
        (Status.SUBDOC_SUCCESS_DELETED, {"success", "subdoc", "item-deleted"}),
    ],
)
def test_what_clients_decide_by(status: Status, attributes: set[str]) -> None:
    assert set(ERRORS[status][1].split()) == attributes


def test_parts_of_documents_are_told_apart() -> None:
    for status, (_, attributes) in ERRORS.items():
        assert ("subdoc" in attributes.split()) == status.name.startswith("SUBDOC")


def test_a_client_gets_the_newest_it_understands() -> None:
    assert error_map(0) is None
    assert read(3) == read(0xFFFF) == read(2)
    assert read(1) != read(2)
    assert error_map(2) is error_map(2)
