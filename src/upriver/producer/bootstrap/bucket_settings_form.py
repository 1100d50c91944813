"""Parses the HTTP forms that create a bucket or change its settings.

A field that this server cannot honour is refused by its name, as on Couchbase Server. None is
ignored. The memory quota covers read and write memory together, split in the proportion of the
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from ...errors import ConfigError
from ...store import BucketSettings
from .http_messages import HttpRefusal

_MIB: Final = 1024 * 1024
#: Lower and upper limit of a bucket's memory, in MiB.
_MEMORY: Final = range(16, 1024 * 1024 + 1)
_DEFAULTS: Final = BucketSettings()

#: Fields for which this server supports fixed values only, with these values.
_FIXED: Final[dict[str, frozenset[str]]] = {
    "bucketType": frozenset({"couchbase", "membase"}),
    "replicaNumber": frozenset({"0"}),
    "replicaIndex": frozenset({"0", "false"}),
    "maxTTL": frozenset({"0"}),
    # Both policies mean the same here: documents are read from disk when memory is short.
    "evictionPolicy": frozenset({"valueOnly", "fullEviction"}),
    # Active allows the server to compress documents, and never obliges it to.
    "compressionMode": frozenset({"passive", "active"}),
    "conflictResolutionType": frozenset({"seqno"}),
    "durabilityMinLevel": frozenset({"none"}),
    "storageBackend": frozenset({"couchstore"}),
    "authType": frozenset({"sasl"}),
    "threadsNumber": frozenset(map(str, range(2, 9))),
    "historyRetentionCollectionDefault": frozenset({"false"}),
    "historyRetentionBytes": frozenset({"0"}),
    "historyRetentionSeconds": frozenset({"0"}),
}


def new_settings(form: Mapping[str, str], like: BucketSettings) -> BucketSettings:
    """Returns the settings of a new bucket. It has as many vbuckets as ``like`` by default."""
    errors: dict[str, str] = {}
    changes: dict[str, Any] = {"vbuckets": like.vbuckets, "flush_enabled": False}
    _take(form, {"name", "numVBuckets"}, changes, errors)
    if "numVBuckets" in form:
        _number(form, "numVBuckets", range(1, 1025), changes, errors, "vbuckets")
    _raise(errors)
    try:
        return BucketSettings(**changes)
    except ConfigError as problem:  # pragma: no cover - what is out of range was refused above
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, str(problem)) from None


def changed_settings(form: Mapping[str, str], replicas: int) -> dict[str, Any]:
    """Returns the settings to change. The number of replicas cannot be changed."""
    errors: dict[str, str] = {}
    if form.get("replicaNumber") == str(replicas):
        form = {name: value for name, value in form.items() if name != "replicaNumber"}
    changes: dict[str, Any] = {}
    _take(form, {"name"}, changes, errors)
    _raise(errors)
    return changes


def _take(
    form: Mapping[str, str], more: set[str], changes: dict[str, Any], errors: dict[str, str]
) -> None:
    for field, value in form.items():
        allowed = _FIXED.get(field)
        if allowed is not None:
            if value not in allowed:
                errors[field] = f"{field} can only be {' or '.join(sorted(allowed))} here"
            elif field == "compressionMode":
                changes["compression_mode"] = value
        elif field in ("ramQuotaMB", "ramQuota"):
            _number(form, field, _MEMORY, changes, errors, "memory")
        elif field == "flushEnabled":
            if value not in ("0", "1"):
                errors[field] = "flushEnabled can only be 1 or 0"
            changes["flush_enabled"] = value == "1"
        elif field not in more:
            errors[field] = f"{field} is not known here"
    memory = changes.pop("memory", None)
    if memory is not None:
        whole = _DEFAULTS.read_memory + _DEFAULTS.write_memory
        changes["write_memory"] = memory * _MIB * _DEFAULTS.write_memory // whole
        changes["read_memory"] = memory * _MIB - changes["write_memory"]


def _number(
    form: Mapping[str, str],
    field: str,
    allowed: range,
    changes: dict[str, Any],
    errors: dict[str, str],
    name: str,
) -> None:
    text = form[field]
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if number in allowed:
        changes[name] = number
    else:
        errors[field] = f"{field} must be a number from {allowed.start} to {allowed.stop - 1}"


def _raise(errors: dict[str, str]) -> None:
    if errors:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "; ".join(errors.values()), errors=errors)
