"""Where in a data file a document's row is: hashes of document names, sorted, with row numbers.

The hash is SipHash-2-4 with 128 bits, keyed with a random key of the table. Nobody who does not
have that key can make two documents with the same hash, and that it happens by chance among a
thousand million documents has a probability below 1 to 10**20. So a hit needs no look at the row.
A document's name is its vbucket, its scope and collection, and its key.

An index is a cache beside the data file. It is derived from the file, is bound to it by name, size
and number of rows, has a check sum, and is made anew from the file's columns if it is missing,
damaged or of another file. It may name rows that are gone by now.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FOLDER: Final = "_upriver/index"
#: The columns that a document's name is made of.
NAME_COLUMNS: Final = ("vbucket", "scope", "collection", "key")
_MAGIC: Final = b"UPRIVIX2"
_HEADER: Final = struct.Struct("<8s16sQI")
#: Rows that are hashed at once: what is worked on stays in the processor's cache.
_CHUNK: Final = 8192

_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Hashes:
    """Two words for each of some documents."""

    high: _Words
    low: _Words

    def __len__(self) -> int:
        return len(self.high)

    def take(self, chosen: Any) -> Hashes:
        return Hashes(self.high[chosen], self.low[chosen])

    @classmethod
    def joined(cls, parts: list[Hashes]) -> Hashes:
        if not parts:
            return cls(np.empty(0, np.uint64), np.empty(0, np.uint64))
        return cls(np.concatenate([p.high for p in parts]), np.concatenate([p.low for p in parts]))

    def followers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Where each document is there next, or -1; and whether a place is its first."""
        order = np.lexsort((np.arange(len(self)), self.low, self.high))
        high, low = self.high[order], self.low[order]
        same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        following = np.full(len(self), -1, np.int64)
        following[order[:-1][same]] = order[1:][same]
        is_first = np.ones(len(self), bool)
        is_first[order[1:][same]] = False
        return following, is_first

    def newest(self) -> npt.NDArray[np.bool_]:
        """Of documents that are there several times, the last."""
        order = np.argsort(self.high, kind="stable")
        high = self.high[order]
        if not (high[1:] == high[:-1]).any():
            return np.ones(len(self), bool)
        order = np.lexsort((np.arange(len(self)), self.low, self.high))
        high, low = self.high[order], self.low[order]
        last = np.ones(len(self), bool)
        last[:-1] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        found = np.zeros(len(self), bool)
        found[order[last]] = True
        return found


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """The index of one file: hashes in order, and the row of each."""

    hashes: Hashes
    rows: npt.NDArray[np.uint32]

    @classmethod
    def build(cls, hashes: Hashes, rows: npt.NDArray[Any]) -> KeyIndex:
        order = np.argsort(hashes.high, kind="stable")
        return cls(hashes.take(order), rows[order].astype(np.uint32))

    def find(self, wanted: Hashes) -> npt.NDArray[np.uint32]:
        """The rows that are of wanted documents."""
        return self.find_pairs(wanted)[0]

    def find_pairs(self, wanted: Hashes) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """The same, and for each row which of the wanted documents it is of."""
        held = self.hashes
        first = np.searchsorted(held.high, wanted.high, "left")
        count = np.searchsorted(held.high, wanted.high, "right") - first
        hit = np.flatnonzero(count)
        rows, which = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
        for step in range(int(count.max(initial=0))):
            hit = hit[count[hit] > step]
            at = first[hit] + step
            same = held.low[at] == wanted.low[hit]
            rows.append(self.rows[at[same]])
            which.append(hit[same])
        return np.concatenate(rows), np.concatenate(which)

    def to_bytes(self, binding: bytes) -> bytes:
        body = self.hashes.high.tobytes() + self.hashes.low.tobytes() + self.rows.tobytes()
        return _HEADER.pack(_MAGIC, binding, len(self.rows), zlib.crc32(body)) + body

    @classmethod
    def of_bytes(cls, data: Any, binding: bytes, file_rows: int) -> KeyIndex | None:
        """The index that is bound so, of a file of so many rows; None if these bytes are not it."""
        if len(data) < _HEADER.size:
            return None
        magic, bound, count, checked = _HEADER.unpack(data[: _HEADER.size])
        body = memoryview(data)[_HEADER.size :]
        if magic != _MAGIC or bound != binding or len(body) != 20 * count:
            return None
        if zlib.crc32(body) != checked:
            return None
        high = np.frombuffer(body, np.uint64, count)
        low = np.frombuffer(body, np.uint64, count, 8 * count)
        rows = np.frombuffer(body, np.uint32, count, 16 * count)
        if count and rows.max() >= file_rows:
            return None
        return cls(Hashes(high, low), rows)


def binding_of(path: str, size: int, rows: int, key: bytes) -> bytes:
    """What binds an index to a data file, and to the table's key that its hashes are made with."""
    return hashlib.blake2b(repr((path, size, rows)).encode(), digest_size=16, key=key).digest()


def index_path(data_file: str) -> str:
    """Where the index of a data file is, relative to the table."""
    return f"{FOLDER}/{data_file.rpartition('/')[2].removesuffix('.parquet')}.idx"


# ---- hashing -----------------------------------------------------------------------------


def hashes_of(rows: pa.RecordBatch | pa.Table, key: bytes) -> Hashes:
    """The hashes of rows by their names, with the table's key of 16 bytes."""
    count = rows.num_rows
    prefix = np.empty((2, count), np.uint64)
    prefix[0] = np.asarray(rows.column("vbucket")).astype(np.uint64)
    prefix[1] = _collections(rows, key)
    keys: Any = rows.column("key").cast(pa.binary())
    if isinstance(keys, pa.ChunkedArray):
        keys = pa.concat_arrays(keys.chunks) if keys.num_chunks else pa.array([], pa.binary())
    buffers = keys.buffers()
    offsets = np.frombuffer(buffers[1], np.int32, count + 1, keys.offset * 4).astype(np.int64)
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] else np.empty(0, np.uint8)
    parts = [
        _siphash(prefix[:, at : at + _CHUNK], offsets[at : at + _CHUNK + 1], data, key)
        for at in range(0, count, _CHUNK)
    ]
    return Hashes.joined(parts)


def _collections(rows: pa.RecordBatch | pa.Table, key: bytes) -> _Words | np.uint64:
    """A word for the scope and the collection of each row; there are few of them."""
    scopes, scope_of = _numbered(rows.column("scope"))
    collections, collection_of = _numbered(rows.column("collection"))
    if not scopes or not collections:
        return np.uint64(0)
    if len(scopes) == len(collections) == 1:
        return np.uint64(_collection_word(scopes[0], collections[0], key))
    pairs, pair_of = np.unique(scope_of * len(collections) + collection_of, return_inverse=True)
    words = []
    for pair in pairs.tolist():
        scope, collection = divmod(pair, len(collections))
        words.append(_collection_word(scopes[scope], collections[collection], key))
    return np.array(words, np.uint64)[pair_of]


def _numbered(column: Any) -> tuple[list[str | None], npt.NDArray[np.int64]]:
    """The different texts of a column, and for each row which of them it is."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = whole.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


@lru_cache(maxsize=4096)
def _collection_word(scope: str | None, collection: str | None, key: bytes) -> int:
    text = repr((scope, collection)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=key).digest(), "little")


def _siphash(prefix: _Words, offsets: npt.NDArray[np.int64], data: Any, key: bytes) -> Hashes:
    """SipHash-2-4-128 of the two prefix words and the bytes of some keys, all at once."""
    count = len(offsets) - 1
    lengths = np.diff(offsets)
    k0, k1 = (np.uint64(word) for word in struct.unpack("<QQ", key))
    v = [
        np.full(count, k0 ^ np.uint64(0x736F6D6570736575), np.uint64),
        np.full(count, k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE), np.uint64),
        np.full(count, k0 ^ np.uint64(0x6C7967656E657261), np.uint64),
        np.full(count, k1 ^ np.uint64(0x7465646279746573), np.uint64),
    ]
    for word in prefix:
        _absorb(v, word)
    whole = lengths // 8
    padded = _words(offsets, lengths, data)
    last = int(whole.max(initial=0))
    for at in range(last + 1):
        word = padded[:, at].copy()
        ends = whole == at
        # the last word of a key has its length in the highest byte, as SipHash wants it
        word[ends] |= ((lengths[ends] + 16) & 0xFF).astype(np.uint64) << np.uint64(56)
        if (whole >= at).all():
            _absorb(v, word)
            continue
        goes_on = whole >= at
        some = [part[goes_on] for part in v]
        _absorb(some, word[goes_on])
        for part, new in zip(v, some, strict=True):
            part[goes_on] = new
    v[2] ^= np.uint64(0xEE)
    for _ in range(4):
        _round(v)
    high = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= np.uint64(0xDD)
    for _ in range(4):
        _round(v)
    return Hashes(high, v[0] ^ v[1] ^ v[2] ^ v[3])


def _words(offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], data: Any) -> _Words:
    """The bytes of each key as words of eight, padded with zeros, at least one more than full."""
    count = len(lengths)
    width = (int(lengths.max(initial=0)) // 8 + 1) * 8
    first = int(offsets[0])
    flat = data[first : int(offsets[-1])]
    target = np.repeat(np.arange(count, dtype=np.int64) * width - (offsets[:-1] - first), lengths)
    padded = np.zeros(count * width, np.uint8)
    padded[target + np.arange(len(flat))] = flat
    return padded.view("<u8").reshape(count, width // 8)


def _absorb(v: list[_Words], word: Any) -> None:
    v[3] ^= word
    _round(v)
    _round(v)
    v[0] ^= word


def _rotated(word: _Words, bits: int) -> _Words:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


def _round(v: list[_Words]) -> None:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] = _rotated(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] = _rotated(v[2], 32)
