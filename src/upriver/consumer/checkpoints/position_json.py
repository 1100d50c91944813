"""JSON form of one position: converts, parses and validates it.

    vbuuid          the branch that the consumer follows
    seqno           the last change that it has received
    snapshot        [start, end]; start <= seqno <= end
    manifest_uid    the uid of the newest collections manifest that it has seen
    purge_seqno     the last purge seqno that the producer sent
    log             the failover log: [[vbuuid, seqno], ...], newest first
    boundaries      earlier seqnos at which its data was consistent, ascending, none above seqno
    origin          the seqno at which it started; it has no changes up to here (if missing: 0)

All numbers are exact integers of up to 64 bits. Errors name the mistake and the place that the
caller gives, such as a vbucket. This module does no I/O.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final

from ...errors import ConfigError
from ...model import FailoverEntry, FailoverLog, Snapshot, StreamOffset
from ...session.stream_position import Position
from ...wire.limits import MAX_FAILOVER_LOG

#: Several times what a consumer keeps: it thins its boundaries out before there are a hundred.
_MAX_BOUNDARIES: Final = 512
_U64_END: Final = 2**64

_MEMBERS: Final = frozenset(
    {"vbuuid", "seqno", "snapshot", "manifest_uid", "purge_seqno", "log", "boundaries"}
)
_OPTIONAL: Final = frozenset({"origin"})


def dump_position(position: Position) -> dict[str, Any]:
    """Returns a position as the members of a JSON object."""
    offset = position.offset
    members = {
        "vbuuid": offset.vbuuid,
        "seqno": offset.seqno,
        "snapshot": [offset.snapshot.start, offset.snapshot.end],
        "manifest_uid": position.manifest_uid,
        "purge_seqno": position.purge_seqno,
        "log": [[entry.vbuuid, entry.seqno] for entry in position.log],
        "boundaries": list(position.boundaries),
    }
    return {**members, "origin": position.origin} if position.origin else members


def load_position(members: object, where: str) -> Position:
    """Parses a position; ConfigError names the mistake, with ``where`` as its place."""
    found = load_members(members, _MEMBERS, where, optional=_OPTIONAL)
    start, end = _pair(found["snapshot"], f"{where}, snapshot")
    position = Position(
        offset=StreamOffset(
            vbuuid=_whole(found["vbuuid"], f"{where}, vbuuid"),
            seqno=_whole(found["seqno"], f"{where}, seqno"),
            snapshot=Snapshot(start, end),
        ),
        log=FailoverLog(
            tuple(
                FailoverEntry(*_pair(entry, f"{where}, log"))
                for entry in _list(found["log"], f"{where}, log")
            )
        ),
        boundaries=tuple(
            _whole(boundary, f"{where}, boundaries")
            for boundary in _list(found["boundaries"], f"{where}, boundaries")
        ),
        manifest_uid=_whole(found["manifest_uid"], f"{where}, manifest_uid"),
        purge_seqno=_whole(found["purge_seqno"], f"{where}, purge_seqno"),
        origin=_whole(found.get("origin", 0), f"{where}, origin"),
    )
    check_position(position, where)
    return position


def check_position(position: Position, where: str) -> None:
    """Raises ConfigError if a position is invalid, whether it was parsed or constructed."""
    offset, boundaries = position.offset, position.boundaries
    _check_u64(offset.vbuuid, f"{where}, vbuuid")
    _check_u64(offset.seqno, f"{where}, seqno")
    _check_u64(offset.snapshot.start, f"{where}, snapshot")
    _check_u64(offset.snapshot.end, f"{where}, snapshot")
    _check_u64(position.manifest_uid, f"{where}, manifest_uid")
    _check_u64(position.purge_seqno, f"{where}, purge_seqno")
    _check_u64(position.origin, f"{where}, origin")
    if position.origin > offset.seqno:
        raise ConfigError(f"{where}, origin: it is above seqno {offset.seqno}")
    if not offset.snapshot.start <= offset.seqno <= offset.snapshot.end:
        raise ConfigError(
            f"{where}, snapshot: seqno {offset.seqno} is not within "
            f"{offset.snapshot.start}..{offset.snapshot.end}"
        )
    if len(position.log) > MAX_FAILOVER_LOG:
        raise ConfigError(
            f"{where}, log: {len(position.log)} branches; at most {MAX_FAILOVER_LOG} are allowed"
        )
    for entry in position.log:
        _check_u64(entry.vbuuid, f"{where}, log")
        _check_u64(entry.seqno, f"{where}, log")
    if len(boundaries) > _MAX_BOUNDARIES:
        raise ConfigError(
            f"{where}, boundaries: {len(boundaries)} of them; at most {_MAX_BOUNDARIES} are allowed"
        )
    if any(older >= newer for older, newer in pairwise(boundaries)):
        raise ConfigError(f"{where}, boundaries: they must rise")
    if boundaries and not 1 <= boundaries[0] <= boundaries[-1] <= offset.seqno:
        raise ConfigError(f"{where}, boundaries: they must be within 1..seqno ({offset.seqno})")


# ---- strict JSON -------------------------------------------------------------------------


def parse_json(text: str | bytes) -> Any:
    """Parses JSON text; raises ConfigError if it is invalid or an object repeats a member."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"it is not JSON that can be read: {problem}") from None


def load_members(
    value: object, names: frozenset[str], where: str, optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Checks that a value is an object with all ``names``, any ``optional`` ones and no others."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: an object was expected, not {_shown(value)}")
    missing = sorted(names - value.keys())
    if missing:
        raise ConfigError(f"{where}: {', '.join(missing)} missing")
    unknown = sorted(value.keys() - names - optional)
    if unknown:
        raise ConfigError(f"{where}: {_shown(unknown[0])} is not known here")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{_shown(twice)} is given twice in one object")
    return members


def _whole(value: object, where: str) -> int:
    if type(value) is not int:  # isinstance would accept True
        raise ConfigError(f"{where}: a whole number was expected, not {_shown(value)}")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: a list was expected, not {_shown(value)}")
    return value


def _pair(value: object, where: str) -> tuple[int, int]:
    numbers = _list(value, where)
    if len(numbers) != 2:
        raise ConfigError(f"{where}: two numbers were expected, not {_shown(value)}")
    return _whole(numbers[0], where), _whole(numbers[1], where)


def _check_u64(number: int, where: str) -> None:
    if not 0 <= number < _U64_END:
        raise ConfigError(f"{where}: {_shown(number)} is not within 0..2^64-1")


def _shown(value: object) -> str:
    """A value for an error message, shortened if it is long."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
