"""Deletion vectors: which rows of a data file are gone, as Delta tables store it.

A vector is a 64-bit Roaring bitmap of row numbers. A file of vectors is a byte 1 and then, for each
of them, its size (big endian), its bytes, and their CRC-32 (big endian). The bytes begin with a
magic number (little endian). A descriptor in the log names the file, by a prefix and a UUID in
base 85, and the place in it; short vectors of other writers may be in the descriptor itself.

The files lie below ``_dv``: a full vacuum by another program leaves names with an underscore alone.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ... import _entropy
from ..._extras import extra
from ...errors import UpriverError
from ...files.storage import FileGone, Storage

with extra("spark"):
    from pyroaring import BitMap64

FOLDER: Final = "_dv"
_MAGIC: Final = 1681511377
_ALPHABET: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_VALUES: Final = {letter: value for value, letter in enumerate(_ALPHABET)}
#: Letters of a UUID in base 85.
_UUID_LETTERS: Final = 20


class VectorFile:
    """A file of vectors that is being put together."""

    def __init__(self) -> None:
        self._id = _entropy.uuid4()
        self._parts = [b"\x01"]
        self._size = 1

    def add(self, rows: BitMap64) -> dict[str, Any]:
        """Adds a vector and returns its descriptor."""
        rows.run_optimize()
        data = struct.pack("<i", _MAGIC) + rows.serialize()
        descriptor = {
            "storageType": "u",
            "pathOrInlineDv": FOLDER + _encoded(self._id.bytes),
            "offset": self._size,
            "sizeInBytes": len(data),
            "cardinality": len(rows),
        }
        part = struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        self._parts.append(part)
        self._size += len(part)
        return descriptor

    def write(self, storage: Storage) -> None:
        """Writes the file, if it has any vector."""
        if len(self._parts) > 1:
            path = f"{FOLDER}/deletion_vector_{self._id}.bin"
            storage.put(path, b"".join(self._parts))


def path_of(descriptor: Mapping[str, Any]) -> str | None:
    """The file that a descriptor names, relative to its table; None if it names none."""
    text = descriptor["pathOrInlineDv"]
    if descriptor["storageType"] == "u":
        name = f"deletion_vector_{uuid.UUID(bytes=_decoded(text[-_UUID_LETTERS:]))}.bin"
        prefix = text[:-_UUID_LETTERS]
        return f"{prefix}/{name}" if prefix else name
    return None


def read_vector(storage: Storage, descriptor: Mapping[str, Any] | None) -> BitMap64:
    """The row numbers of a descriptor; none without one."""
    if descriptor is None:
        return BitMap64()
    size = int(descriptor["sizeInBytes"])
    kind = descriptor["storageType"]
    if kind == "i":
        data = _decoded(descriptor["pathOrInlineDv"])[:size]
    elif (path := path_of(descriptor)) is not None:
        try:
            part = storage.read_range(path, int(descriptor.get("offset") or 0), size + 8)
        except FileNotFoundError:
            raise FileGone.at(storage, path) from None
        data = part[4 : 4 + size]
        if struct.unpack(">i", part[:4])[0] != size or part[4 + size :] != struct.pack(
            ">I", zlib.crc32(data)
        ):
            raise UpriverError(f"{storage.url}/{path}: the deletion vector is damaged")
    else:
        raise UpriverError(f"{storage.url}: a deletion vector of the kind {kind!r} is not known")
    if struct.unpack("<i", data[:4])[0] != _MAGIC:
        raise UpriverError(f"{storage.url}: a deletion vector of an unknown format")
    return BitMap64.deserialize(data[4:])


def rows_of(vector: BitMap64) -> npt.NDArray[np.uint64]:
    return np.array(vector.to_array(), np.uint64)


def _encoded(data: bytes) -> str:
    letters: list[str] = []
    for (number,) in struct.iter_unpack(">I", data):
        word = []
        for _ in range(5):
            number, rest = divmod(number, 85)
            word.append(_ALPHABET[rest])
        letters += reversed(word)
    return "".join(letters)


def _decoded(text: str) -> bytes:
    parts = []
    for at in range(0, len(text), 5):
        number = 0
        for letter in text[at : at + 5]:
            number = number * 85 + _VALUES[letter]
        parts.append(struct.pack(">I", number))
    return b"".join(parts)
