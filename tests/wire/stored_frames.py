"""Stored frames of every kind, as Hypothesis draws them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from upriver.wire import canonical, leb128, values
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.limits import MAX_COLLECTION_KEY, MAX_KEY

STORED = Dcp(collections=True)
VBUCKET = 5
#: One to five bytes of LEB128, and the default one most often.
COLLECTIONS = (0, 0, 0, 8, 9, 0x7F, 0x80, 0x4000, 2**32 - 1)
SCOPES = (0, 8, 9)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
collections = st.sampled_from(COLLECTIONS)
xattrs = st.dictionaries(
    st.sampled_from(["_sync", "_txn", "mine", "other"]),
    st.binary(max_size=9),
    max_size=3,
)


@st.composite
def keys(draw: st.DrawFn) -> bytes:
    """A key behind its collection id, most often short, sometimes as long as it may be."""
    collection = draw(collections)
    most = MAX_COLLECTION_KEY if collection else MAX_KEY
    size = draw(st.one_of(st.integers(1, 12), st.just(most)))
    return leb128.encode(collection) + draw(st.binary(min_size=size, max_size=size))


@st.composite
def bodies(draw: st.DrawFn, *, deleted: bool = False) -> tuple[int, bytes]:
    """A datatype and a value that it describes."""
    has_xattrs = draw(st.booleans())
    compressed = draw(st.sampled_from([False, False, False, True]))
    body = b"" if deleted else draw(st.one_of(st.binary(max_size=20), st.just(b"x" * 300)))
    datatype = 0 if deleted else draw(st.sampled_from([0, 1]))
    value = body
    if has_xattrs:
        value, datatype = values.join_xattrs(draw(xattrs), body), datatype | 4
    elif deleted:
        compressed = False
    if compressed:
        value, datatype = values.deflate(value), datatype | 2
    return datatype, value


@st.composite
def changes(draw: st.DrawFn, seqno: int) -> bytes:
    """A stored mutation, deletion or expiration."""
    kind = draw(st.sampled_from("mmmmde"))
    key, rev, cas, time = draw(keys()), draw(U64), draw(U64), draw(U32)
    datatype, value = draw(bodies(deleted=kind != "m"))
    if kind == "m":
        flags = draw(U32)
        return canonical.mutation(VBUCKET, seqno, rev, cas, flags, time, datatype, key, value)
    write = canonical.deletion if kind == "d" else canonical.expiration
    return write(VBUCKET, seqno, rev, cas, time, datatype, key, value)


@st.composite
def events(draw: st.DrawFn, seqno: int) -> bytes:
    """A stored system event."""
    collection, scope = draw(collections), draw(st.sampled_from(SCOPES))
    common: Any = {"vbucket": VBUCKET, "seqno": seqno, "manifest_uid": draw(U32), "scope": scope}
    return STORED.encode(
        draw(
            st.sampled_from(
                [
                    m.CollectionCreated(name="c", collection=collection, **common),
                    m.CollectionCreated(name="c", collection=collection, max_ttl=7, **common),
                    m.CollectionDropped(collection=collection, **common),
                    m.ScopeCreated(name="s", **common),
                    m.ScopeDropped(**common),
                ]
            )
        )
    )


@st.composite
def frame_lists(draw: st.DrawFn, *, most: int = 12) -> list[bytes]:
    """Frames with rising seqnos: mostly changes, some events."""
    found: list[bytes] = []
    for number in range(draw(st.integers(0, most))):
        is_event = draw(st.sampled_from([False] * 7 + [True]))
        found.append(draw(events(number + 1) if is_event else changes(number + 1)))
    return found
