"""Parses the JSON value of a Range Scan Create request.

    {"collection": "8", "key_only": true, "include_xattrs": false, "name": "...",
     "range": {"start" or "excl_start": base64, "end" or "excl_end": base64},
     "sampling": {"samples": 10, "seed": 1},
     "snapshot_requirements": {"vb_uuid": "123", "seqno": 5, "seqno_exists": true,
                               "timeout_ms": 100}}

Exactly one of range and sampling must be present. Unknown members are ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ...errors import Status, StoreRefusal
from ...store import KeyRange

_MAX_KEY: Final = 250
_MAX_NAME: Final = 50
_MAX_SEQNO: Final = 2**64 - 1
#: Milliseconds for which a scan may wait for its seqno: the limit of seqno persistence requests.
_MAX_TIMEOUT: Final = 30_000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Sampling:
    """A random sample: the approximate number of documents, and the seed."""

    samples: int
    seed: int


@dataclass(frozen=True, slots=True)
class SnapshotRequirements:
    """The vbuuid and seqno that the vbucket must have before the scan starts."""

    vbuuid: int
    seqno: int
    #: Whether the change with that seqno must still exist, not replaced by a newer one.
    seqno_exists: bool
    #: Seconds.
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """The parameters of a range scan."""

    collection: int
    keys: KeyRange
    sampling: Sampling | None
    requirements: SnapshotRequirements | None
    key_only: bool
    include_xattrs: bool


def parse(value: bytes) -> ScanRequest:
    """Parses the value of the request. A refusal says what is wrong with it."""
    try:
        request = json.loads(value)
    except (ValueError, RecursionError):
        raise _invalid("the value is not JSON") from None
    if not isinstance(request, dict):
        raise _invalid("the value is no JSON object")
    if ("range" in request) is ("sampling" in request):
        raise _invalid("one of range and sampling must be given")
    if len(_field(request, "name", str, "").encode()) > _MAX_NAME:
        raise _invalid(f"name has more than {_MAX_NAME} bytes")
    key_only = _field(request, "key_only", bool, False)
    include_xattrs = _field(request, "include_xattrs", bool, False)
    if key_only and include_xattrs:
        raise _invalid("include_xattrs and key_only do not go together")
    sampling = _field(request, "sampling", dict, None)
    requirements = _field(request, "snapshot_requirements", dict, None)
    return ScanRequest(
        collection=_collection(_field(request, "collection", str, "0")),
        keys=_range(_field(request, "range", dict, {})) if sampling is None else KeyRange(),
        sampling=None if sampling is None else _sampling(sampling),
        requirements=None if requirements is None else _requirements(requirements),
        key_only=key_only,
        include_xattrs=include_xattrs,
    )


def _invalid(problem: str) -> StoreRefusal:
    return StoreRefusal(Status.INVALID, f"range scan: {problem}")


def _field(members: dict[str, Any], name: str, kind: type[_T], default: _T | None) -> Any:
    """Returns a member of the given type. A boolean is not accepted as a number."""
    found = members.get(name, default)
    fits = isinstance(found, kind) and not (kind is int and isinstance(found, bool))
    if not fits and not (found is None and default is None and name not in members):
        raise _invalid(f"{name} is no {kind.__name__}")
    return found


def _collection(text: str) -> int:
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 <= number <= 0xFFFFFFFF:
        raise _invalid(f"{text[:_MAX_NAME]!r} is no collection id in hexadecimal")
    return number


def _range(members: dict[str, Any]) -> KeyRange:
    start, start_excluded = _bound(members, "start")
    end, end_excluded = _bound(members, "end")
    if start > end:
        raise _invalid("the range ends before it starts")
    return KeyRange(start, end, start_excluded, end_excluded)


def _bound(members: dict[str, Any], name: str) -> tuple[bytes, bool]:
    excluding = f"excl_{name}"
    if (name in members) is (excluding in members):
        raise _invalid(f"one of {name} and {excluding} must be given")
    text = _field(members, name if name in members else excluding, str, "")
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _invalid(f"{name} is no base64") from None
    if len(key) > _MAX_KEY:
        raise _invalid(f"{name} has more than {_MAX_KEY} bytes")
    return key, excluding in members


def _sampling(members: dict[str, Any]) -> Sampling:
    samples, seed = _field(members, "samples", int, 0), _field(members, "seed", int, 0)
    if samples <= 0:
        raise _invalid("samples must be a number above 0")
    return Sampling(samples, seed)


def _requirements(members: dict[str, Any]) -> SnapshotRequirements:
    vbuuid = members.get("vb_uuid")
    if isinstance(vbuuid, str) and vbuuid.isascii() and vbuuid.isdigit() and len(vbuuid) <= 20:
        vbuuid = int(vbuuid)
    if not isinstance(vbuuid, int) or isinstance(vbuuid, bool):
        raise _invalid("vb_uuid is no decimal number in a string")
    seqno = _field(members, "seqno", int, -1)
    timeout = _field(members, "timeout_ms", int, 0)
    if not 0 <= seqno <= _MAX_SEQNO:
        raise _invalid("seqno must be a number from 0 on")
    if timeout < 0:
        raise _invalid("timeout_ms is negative")
    return SnapshotRequirements(
        vbuuid,
        seqno,
        _field(members, "seqno_exists", bool, False),
        min(timeout, _MAX_TIMEOUT) / 1000,
    )
