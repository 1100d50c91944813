"""Range scans: send the documents of a vbucket's collection in key order, or a sample of them.

    Create ──> idle <──more── continuing ──complete, cancelled, fault──> gone
                └──Cancel, too old──────────────────────────────────────> gone

A scan holds a frozen view of the store open, so the number and the age of scans are limited. A scan
belongs to the user that created it. It also ends when the connection that continues it closes.
"""

from __future__ import annotations

import random
import secrets
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ...errors import Status, StoreRefusal
from ...model import VBucketState
from ...store import Bucket, KeyScan, ScannedDocument
from ...wire import kv_messages as kv
from ...wire import leb128
from ...wire.messages import PlainResponse, Request
from ...wire.protocol_enums import Feature
from . import document_values
from .handler_results import Answer, Later, Now, Responses, Several
from .range_scan_request import Sampling, ScanRequest, parse
from .request_context import Call

#: Scans of one bucket that may be open at the same time, and seconds that each may stay open. The
#: time limit is that of Couchbase Server.
_MOST_SCANS: Final = 256
_LIFETIME: Final = 180.0
#: Entries that one step reads, and bytes of documents in one response.
_STEP: Final = 64
_RESPONSE_BYTES: Final = 32 * 1024
#: Entries without a document that Create reads before it assumes that the range has a document.
_LOOKED_AT: Final = 2000
_CONTENT = struct.Struct(
    ">I"  # 0: keys, 1: documents
)
_METADATA = struct.Struct(
    ">"
    "I"  # flags
    "I"  # expiry
    "Q"  # seqno
    "Q"  # cas
    "B"  # datatype
)


@dataclass(slots=True)
class _Scan:
    """One open scan."""

    reader: KeyScan
    wanted: ScanRequest
    user: str | None
    vbuuid: int
    opened_at: float
    continuing: bool = False
    #: Decides which documents of a sample are sent. None until the documents are counted.
    choose: Callable[[], bool] | None = None


class RangeScans:
    """The open scans of one bucket."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._scans: dict[tuple[int, int], _Scan] = {}

    def __len__(self) -> int:
        return len(self._scans)

    def add(self, scan: _Scan) -> tuple[int, int]:
        """Registers a scan and returns its id."""
        self.drop_old()
        if len(self._scans) >= _MOST_SCANS:
            scan.reader.close()
            raise StoreRefusal(Status.BUSY, f"{_MOST_SCANS} range scans are open already")
        name = secrets.randbits(64), secrets.randbits(64)
        self._scans[name] = scan
        return name

    def find(self, call: Call, request: kv.RangeScanContinue | kv.RangeScanCancel) -> _Scan:
        """Returns the scan with that id, if it belongs to the client's user and to the vbucket."""
        self.drop_old()
        scan = self._scans.get((request.scan_high, request.scan_low))
        if scan is None or scan.user != call.client.user or scan.reader.vbucket != request.vbucket:
            raise StoreRefusal(Status.NOT_FOUND, "there is no range scan of that id")
        return scan

    def is_open(self, scan: _Scan) -> bool:
        return any(known is scan for known in self._scans.values())

    def drop(self, scan: _Scan) -> None:
        """Closes a scan."""
        self._scans = {name: known for name, known in self._scans.items() if known is not scan}
        scan.reader.close()

    def drop_old(self) -> None:
        """Closes the scans that have been open for too long."""
        oldest = self._now() - _LIFETIME
        for scan in [scan for scan in self._scans.values() if scan.opened_at < oldest]:
            self.drop(scan)


# ---- create ------------------------------------------------------------------------------


def _create(call: Call, request: kv.RangeScanCreate) -> Answer:
    if not call.has(Feature.JSON) or not request.datatype:
        raise StoreRefusal(Status.INVALID, "a range scan is described by a value of datatype JSON")
    wanted = parse(request.value)
    bucket, vbucket = call.bucket, request.vbucket
    _check_active(bucket, vbucket)
    bucket.manifest.collection(wanted.collection)
    if wanted.collection and not call.has(Feature.COLLECTIONS):
        raise StoreRefusal(Status.INVALID, "collections were not negotiated")
    required = wanted.requirements
    if required is None or _is_persisted(bucket, vbucket, required.seqno):
        return Now(_open(call, request, wanted))
    _check_vbuuid(bucket, vbucket, required.vbuuid)
    if not required.timeout:
        raise _not_persisted(required.seqno)
    deadline = call.node.now() + required.timeout

    def poll() -> Responses | None:
        _check_active(bucket, vbucket)
        if _is_persisted(bucket, vbucket, required.seqno):
            return _open(call, request, wanted)
        if call.node.now() >= deadline:
            raise _not_persisted(required.seqno)
        return None

    return Later(poll)


def _check_active(bucket: Bucket, vbucket: int) -> None:
    state = bucket.state(vbucket)
    if state is not VBucketState.ACTIVE:
        raise StoreRefusal(
            Status.NOT_MY_VBUCKET, f"vbucket {vbucket} is {state.name.lower()}, not active"
        )


def _check_vbuuid(bucket: Bucket, vbucket: int, vbuuid: int) -> None:
    ours = bucket.failover_log(vbucket).newest.vbuuid
    if ours != vbuuid:
        raise StoreRefusal(
            Status.VBUUID_NOT_EQUAL, f"vbucket {vbucket} has the uuid {ours}, not {vbuuid}"
        )


def _is_persisted(bucket: Bucket, vbucket: int, seqno: int) -> bool:
    return bucket.vbucket_stats(vbucket).persisted_seqno >= seqno


def _not_persisted(seqno: int) -> StoreRefusal:
    return StoreRefusal(Status.TEMPORARY_FAILURE, f"seqno {seqno} is not on disk yet")


def _open(call: Call, request: kv.RangeScanCreate, wanted: ScanRequest) -> Responses:
    bucket, vbucket, required = call.bucket, request.vbucket, wanted.requirements
    if required is not None:
        _check_vbuuid(bucket, vbucket, required.vbuuid)
        if required.seqno_exists and not bucket.has_seqno(vbucket, required.seqno):
            raise StoreRefusal(
                Status.NOT_STORED, f"the change of seqno {required.seqno} was replaced"
            )
    reader = bucket.open_scan(vbucket, wanted.collection, wanted.keys)
    found, more = reader.read(1)
    for _ in range(_LOOKED_AT // _STEP):
        if found or not more:
            break
        found, more = reader.read(_STEP)
    if not found and not more:
        reader.close()
        raise StoreRefusal(Status.NOT_FOUND, "there is no document in the range")
    reader.rewind()
    vbuuid = bucket.failover_log(vbucket).newest.vbuuid
    scan = _Scan(reader, wanted, call.client.user, vbuuid, call.node.now())
    high, low = call.scans.add(scan)
    return (call.plain(high.to_bytes(8) + low.to_bytes(8)),)


# ---- continue ----------------------------------------------------------------------------


def _continue(call: Call, request: kv.RangeScanContinue) -> Answer:
    scan = call.scans.find(call, request)
    if scan.continuing:
        raise StoreRefusal(Status.BUSY, "the range scan is being continued already")
    scan.continuing = True
    return Several(_steps(call, request, scan))


def _steps(call: Call, request: kv.RangeScanContinue, scan: _Scan) -> Iterator[Responses]:
    """Yields the responses to one Continue. Any end of it except a limit closes the scan."""
    is_kept = False
    try:
        if scan.wanted.sampling is not None and scan.choose is None:
            yield from _count(scan, scan.wanted.sampling)
        limits = _Limits(call, request)
        batch = bytearray()
        more = True
        while more and not limits.reached:
            _check_still(call, scan)
            # Read entry by entry near a limit: entries that are read and not sent would be lost.
            found, more = scan.reader.read(limits.step)
            for document in found:
                if scan.choose is None or scan.choose():
                    content = _content(call, scan, document)
                    batch += content
                    limits.sent(len(content))
            if len(batch) >= _RESPONSE_BYTES:
                yield (_response(call, scan, Status.SUCCESS, bytes(batch)),)
                batch.clear()
            else:
                yield ()
        is_kept = more
        status = Status.RANGE_SCAN_MORE if more else Status.RANGE_SCAN_COMPLETE
        scan.continuing = False
        if not more:
            call.scans.drop(scan)
        yield (_response(call, scan, status, bytes(batch)),)
    finally:
        if not is_kept:
            call.scans.drop(scan)


def _count(scan: _Scan, sampling: Sampling) -> Iterator[Responses]:
    """Counts the documents that a sample is taken from; the count sets the probability of each."""
    count, more = 0, True
    while more:
        found, more = scan.reader.read(4 * _STEP)
        count += len(found)
        yield ()
    scan.reader.rewind()
    likely = sampling.samples / max(count, 1)
    draw = random.Random(sampling.seed)
    scan.choose = lambda: likely >= 1 or draw.random() < likely


def _check_still(call: Call, scan: _Scan) -> None:
    """Refuses to continue a scan that was cancelled, or whose vbucket or collection is gone."""
    vbucket = scan.reader.vbucket
    if not call.scans.is_open(scan):
        raise StoreRefusal(Status.RANGE_SCAN_CANCELLED, "the range scan was cancelled")
    _check_active(call.bucket, vbucket)
    _check_vbuuid(call.bucket, vbucket, scan.vbuuid)
    call.bucket.manifest.collection(scan.reader.collection)


class _Limits:
    """How much one Continue may still send: documents, time and bytes."""

    def __init__(self, call: Call, request: kv.RangeScanContinue) -> None:
        self._now = call.node.now
        self._items = request.item_limit or None
        self._bytes = request.byte_limit or None
        limit = request.time_limit
        self._deadline = self._now() + limit / 1000 if limit else None
        self._sent = False

    def sent(self, size: int) -> None:
        self._sent = True
        if self._items is not None:
            self._items -= 1
        if self._bytes is not None:
            self._bytes -= size

    @property
    def step(self) -> int:
        """Returns how many entries may be read before the limits are checked again."""
        if self._bytes is not None:
            return 1
        return _STEP if self._items is None else min(_STEP, self._items)

    @property
    def reached(self) -> bool:
        spent = self._items is not None and self._items <= 0
        spent = spent or (self._bytes is not None and self._bytes <= 0)
        late = self._deadline is not None and self._now() >= self._deadline
        return spent or (late and self._sent)


def _content(call: Call, scan: _Scan, found: ScannedDocument) -> bytes:
    """Encodes a document, or its key only, for the response."""
    key = leb128.encode(len(found.key)) + found.key
    if scan.wanted.key_only:
        return key
    document = scan.reader.document(found.record)
    value, datatype = document.value, document.datatype
    if not scan.wanted.include_xattrs or not call.has(Feature.XATTR):
        value, shown = document_values.shown(call.client, value, datatype)
        datatype = int(shown)
    metadata = _METADATA.pack(document.flags, document.time, document.seqno, document.cas, datatype)
    return b"".join((metadata, key, leb128.encode(len(value)), value))


def _response(call: Call, scan: _Scan, status: Status, value: bytes) -> PlainResponse:
    extras = _CONTENT.pack(0 if scan.wanted.key_only else 1)
    return call.plain(value, status=status, extras=extras)


# ---- cancel ------------------------------------------------------------------------------


def _cancel(call: Call, request: kv.RangeScanCancel) -> Answer:
    call.scans.drop(call.scans.find(call, request))
    return Now((call.plain(),))


HANDLERS: dict[type[Request], Callable[[Call, Any], Answer]] = {
    kv.RangeScanCreate: _create,
    kv.RangeScanContinue: _continue,
    kv.RangeScanCancel: _cancel,
}
