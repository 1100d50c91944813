"""SET, ADD and DELETE WITH META: writes with a revision and CAS from another cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ...errors import Status, StoreRefusal
from ...escaping import quoted
from ...model import Datatype, Op
from ...store import WithMeta
from ...wire import kv_messages as kv
from ...wire import values
from ...wire.messages import Request
from ...wire.protocol_enums import WithMetaOption
from . import document_values
from .document_writes import datatype_of, live_record, written
from .handler_results import Answer, Write
from .request_context import Call, key_of

#: Nanoseconds by which the CAS of another cluster may be ahead of our clock, as on Couchbase
#: Server. Later CAS values continue from it, so a CAS far ahead would move the clock forward
#: permanently.
_MAX_CAS_AHEAD: Final = 65 * 60 * 1_000_000_000

_UNCONDITIONAL: Final = WithMetaOption.FORCE | WithMetaOption.SKIP_CONFLICT_RESOLUTION
# As an integer: the complement of a flag set has no unknown bits.
_KNOWN: Final = int(~WithMetaOption.NONE)


def _set_with_meta(call: Call, request: kv.SetWithMeta) -> Answer:
    datatype = datatype_of(call, request)
    if request.add_only:
        _check_absent(call, request)
    return _with_meta(call, request, Op.MUTATION, datatype, request.expiry)


def _delete_with_meta(call: Call, request: kv.DeleteWithMeta) -> Answer:
    if document_values.checked_body(call.client, request.value, request.datatype):
        request = _without_body(request)
    expired = (request.options or 0) & WithMetaOption.EXPIRATION
    op = Op.EXPIRATION if expired else Op.DELETION
    datatype = int(request.datatype & ~Datatype.JSON)  # a deletion has no JSON body
    return _with_meta(call, request, op, datatype, request.delete_time)


def _with_meta(
    call: Call, request: kv.SetWithMeta | kv.DeleteWithMeta, op: Op, datatype: int, time: int
) -> Answer:
    options = request.options or 0
    if options & ~_KNOWN or (options & WithMetaOption.EXPIRATION and op is Op.MUTATION):
        raise StoreRefusal(Status.INVALID, f"{options:#x} are no options of this command")
    if options & WithMetaOption.REGENERATE_CAS:
        raise StoreRefusal(Status.NOT_SUPPORTED, "a CAS that was given is not made anew")
    if not 0 < request.new_cas <= call.node.now() * 1_000_000_000 + _MAX_CAS_AHEAD:
        raise StoreRefusal(Status.CAS_VALUE_INVALID, f"the CAS {request.new_cas} is out of reach")
    vbucket, key = request.vbucket, key_of(request)
    change = WithMeta(
        vbucket,
        key,
        op,
        request.rev,
        request.new_cas,
        request.value,
        request.flags,
        time,
        datatype,
        call.locks.condition(vbucket, key, request.cas),
        bool(options & _UNCONDITIONAL),
    )
    return Write(change, partial(written, call, request))


def _without_body(request: kv.DeleteWithMeta) -> kv.DeleteWithMeta:
    """Keeps only the attributes of a deletion's value. Older clusters send a body, too."""
    datatype = request.datatype & ~Datatype.JSON
    if not datatype & Datatype.XATTR:
        return replace(request, value=b"", datatype=Datatype.RAW)
    xattrs, _ = values.unwrap(request.value, datatype)
    return replace(request, value=values.join_xattrs(xattrs, b""), datatype=Datatype.XATTR)


def _check_absent(call: Call, request: kv.SetWithMeta) -> None:
    if live_record(call, request.vbucket, key_of(request)) is not None:
        raise StoreRefusal(Status.EXISTS, f"there is a document {quoted(request.key)}")


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {
    kv.SetWithMeta: _set_with_meta,
    kv.DeleteWithMeta: _delete_with_meta,
}
