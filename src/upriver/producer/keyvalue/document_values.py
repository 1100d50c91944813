"""Converts values between clients and the store: compression, JSON datatype, xattrs.

A stored value is a body, with extended attributes before it and Snappy around both. A client sees
only the parts that it negotiated in HELLO. The server itself determines whether a body is JSON,
whatever the client claims.
"""

from __future__ import annotations

from typing import Final

from ...errors import Status, StoreRefusal
from ...model import Datatype
from ...wire import values
from ...wire.json_check import is_json
from ...wire.limits import MAX_CHECKED_JSON
from ...wire.protocol_enums import Feature
from ..connections.client_info import ClientInfo

#: All datatypes, built once: constructing an enum member costs more than the rest of a conversion.
_DATATYPES: Final = tuple(Datatype(bits) for bits in range(8))
_JSON, _SNAPPY, _XATTR = int(Datatype.JSON), int(Datatype.SNAPPY), int(Datatype.XATTR)
#: The feature that a client must have negotiated for each datatype that it sends.
_FEATURES: Final = ((_JSON, Feature.JSON), (_SNAPPY, Feature.SNAPPY), (_XATTR, Feature.XATTR))


def checked_body(client: ClientInfo, value: bytes, datatype: int) -> bytes:
    """Returns the body of a value that a client sent, after checking it against its datatype."""
    for bit, feature in _FEATURES if datatype else ():
        if datatype & bit and not client.has(feature):
            raise StoreRefusal(Status.INVALID, f"{feature.name} was not negotiated in HELLO")
    if not datatype & (_SNAPPY | _XATTR):
        return value
    xattrs, body = _unwrap(value, datatype)
    for name, content in xattrs.items():
        if not is_json(content):
            raise StoreRefusal(Status.XATTR_INVALID, f"the attribute {name} is not JSON")
    return body


def stored_datatype(client: ClientInfo, value: bytes, datatype: int, max_value: int) -> int:
    """Checks a value that a client sent and returns the datatype to store it with."""
    body = checked_body(client, value, datatype)
    if len(body) > max_value:
        raise StoreRefusal(Status.TOO_BIG, f"a document has up to {max_value} bytes")
    if len(body) > MAX_CHECKED_JSON:
        return datatype
    return datatype | _JSON if is_json(body) else datatype & ~_JSON


def shown(client: ClientInfo, value: bytes, datatype: int) -> tuple[bytes, Datatype]:
    """Returns the body of a stored value and its datatype, as far as the client negotiated them."""
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
