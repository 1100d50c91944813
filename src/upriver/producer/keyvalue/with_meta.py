"""Writing documents that another cluster made, with the revision and CAS they have there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ...errors import Status, StoreRefusal
from ...model import Datatype, Op
from ...store import WithMeta
from ...wire import kv
from ...wire.messages import Request
from . import bodies
from .answers import Answer, Write
from .call import Call, key_of
from .writing import datatype_of, live_record, written

__all__ = ["HANDLERS"]

#: How far the CAS of another cluster may be ahead of our clock, in nanoseconds: as on real
#: servers. Ours go on from it, so one from far away would take the clock with it for good.
_MAX_CAS_AHEAD: Final = 65 * 60 * 1_000_000_000

#: The options of a write with metadata.
_SKIP_CONFLICT_RESOLUTION: Final = 0x01
_REGENERATE_CAS: Final = 0x04
_IS_EXPIRATION: Final = 0x10
#: These only say that the sender knows how the bucket resolves conflicts.
_HARMLESS: Final = 0x02 | 0x08


def _set_with_meta(call: Call, request: kv.SetWithMeta) -> Answer:
    datatype = datatype_of(call, request)
    if request.add_only:
        _check_absent(call, request)
    return _with_meta(call, request, Op.MUTATION, datatype, request.expiry)


def _delete_with_meta(call: Call, request: kv.DeleteWithMeta) -> Answer:
    if bodies.checked_body(call.client, request.value, request.datatype):
        raise StoreRefusal(Status.INVALID, "a deletion carries nothing but extended attributes")
    expired = (request.options or 0) & _IS_EXPIRATION
    op = Op.EXPIRATION if expired else Op.DELETION
    datatype = int(request.datatype & ~Datatype.JSON)  # there is no body that could be
    return _with_meta(call, request, op, datatype, request.delete_time)


def _with_meta(
    call: Call, request: kv.SetWithMeta | kv.DeleteWithMeta, op: Op, datatype: int, time: int
) -> Answer:
    options = request.options or 0
    known = _SKIP_CONFLICT_RESOLUTION | _REGENERATE_CAS | _IS_EXPIRATION | _HARMLESS
    if options & ~known or (options & _IS_EXPIRATION and op is Op.MUTATION):
        raise StoreRefusal(Status.INVALID, f"{options:#x} are no options of this command")
    if options & _REGENERATE_CAS:
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
        bool(options & _SKIP_CONFLICT_RESOLUTION),
    )
    return Write(change, partial(written, call, request))


def _check_absent(call: Call, request: kv.SetWithMeta) -> None:
    if live_record(call, request.vbucket, key_of(request)) is not None:
        raise StoreRefusal(Status.EXISTS, f"there is a document {request.key!r}")


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {
    kv.SetWithMeta: _set_with_meta,
    kv.DeleteWithMeta: _delete_with_meta,
}
