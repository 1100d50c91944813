"""What a client sees of a stored value, and what is stored of a value that a client sent.

A value is Snappy around extended attributes around a body; clients see of it what they
negotiated. Whether a body is JSON is found out here, whatever its client says.
"""

from __future__ import annotations

import json
from typing import Final

from ...errors import Status, StoreRefusal
from ...model import Datatype
from ...wire import values
from ...wire.names import Feature
from ..client import Client

__all__ = ["DECODER", "checked_body", "is_json", "shown", "stored_datatype"]

#: Above this a client's word is taken for whether its document is JSON: looking costs about
#: 15 ms for each MiB, in which nobody else is served.
_MAX_CHECKED: Final = 256 * 1024

#: The first bytes of any JSON text.
_JSON_BEGINS: Final = frozenset(b'{["-0123456789tfn \t\r\n')

#: Making one anew costs more than all else that is done with it.
_DATATYPES: Final = tuple(Datatype(bits) for bits in range(8))
_JSON, _SNAPPY, _XATTR = int(Datatype.JSON), int(Datatype.SNAPPY), int(Datatype.XATTR)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


#: Strict: Python's own default takes NaN and Infinity for numbers.
DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def is_json(body: bytes) -> bool:
    """Whether a body is JSON; one that is nested too deeply to tell is none."""
    if not body or body[0] not in _JSON_BEGINS:
        return False
    try:
        DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        return False
    return True


def checked_body(client: Client, value: bytes, datatype: int) -> bytes:
    """The body of a value that a client sent, if the value is what its datatype says."""
    if not datatype & (_SNAPPY | _XATTR):
        return value
    for bit, feature in ((_SNAPPY, Feature.SNAPPY), (_XATTR, Feature.XATTR)):
        if datatype & bit and not client.has(feature):
            raise StoreRefusal(Status.INVALID, f"{feature.name} was not negotiated")
    xattrs, body = _unwrap(value, datatype)
    for name, content in xattrs.items():
        if not is_json(content):
            raise StoreRefusal(Status.XATTR_INVALID, f"the attribute {name} is not JSON")
    return body


def stored_datatype(client: Client, value: bytes, datatype: int, max_value: int) -> int:
    """The datatype with which a value that a client sent is stored, after checking it."""
    body = checked_body(client, value, datatype)
    if len(body) > max_value:
        raise StoreRefusal(Status.TOO_BIG, f"a document has up to {max_value} bytes")
    if len(body) > _MAX_CHECKED:
        return datatype
    return datatype | _JSON if is_json(body) else datatype & ~_JSON


def shown(client: Client, value: bytes, datatype: int) -> tuple[bytes, Datatype]:
    """The body of a stored value and its datatype, as a client may see them."""
    features = client.features
    if datatype & _XATTR or (datatype & _SNAPPY and Feature.SNAPPY not in features):
        _, value = _unwrap(value, datatype)
        datatype &= _JSON
    if datatype & _JSON and Feature.JSON not in features:
        datatype &= ~_JSON
    return value, _DATATYPES[datatype]


def _unwrap(value: bytes, datatype: int) -> tuple[dict[str, bytes], bytes]:
    try:
        return values.unwrap(value, Datatype(datatype))
    except ValueError as problem:
        status = Status.XATTR_INVALID if datatype & _XATTR else Status.INVALID
        raise StoreRefusal(status, str(problem)) from None
