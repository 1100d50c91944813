"""Macros of sub-document mutations: placeholders that the server replaces by its own data.

    "${Mutation.CAS}"            the CAS of this write, lowest byte first
    "${Mutation.seqno}"          its seqno
    "${Mutation.value_crc32c}"   the checksum of the body that it leaves
    "${$document}"               the document's metadata before this write, or one member of it,
                                 as in "${$document.CAS}"

CAS and seqno are known only when the store makes the write. Until then, a random text of the same
length that occurs nowhere else in the document takes their place.
"""

from __future__ import annotations

import json
import secrets
from typing import Final

from ....errors import Status, StoreRefusal
from ....wire.crc32c import crc32c

_CAS: Final = b'"${Mutation.CAS}"'
_SEQNO: Final = b'"${Mutation.seqno}"'
_CHECKSUM: Final = b'"${Mutation.value_crc32c}"'
_DOCUMENT: Final = '"${$document'


class Macros:
    """The macros of one mutation. ``document`` is ``$document`` as JSON; None if there is none."""

    def __init__(self, document: str | None = None) -> None:
        self._document = document
        #: The placeholders of the CAS, the seqno and the checksum. Empty if the macro is not used.
        self.cas_text = b""
        self.seqno_text = b""
        self._checksum_text = b""

    def expand(self, value: bytes) -> bytes:
        """Returns the text that replaces a macro."""
        if value == _CAS:
            self.cas_text = self.cas_text or _placeholder(8)
            return b'"%s"' % self.cas_text
        if value == _SEQNO:
            self.seqno_text = self.seqno_text or _placeholder(8)
            return b'"%s"' % self.seqno_text
        if value == _CHECKSUM:
            self._checksum_text = self._checksum_text or _placeholder(4)
            return b'"%s"' % self._checksum_text
        text = value.decode(errors="replace")
        if text.startswith(_DOCUMENT) and text.endswith('}"'):
            return self._of_document(text.removeprefix(_DOCUMENT).removesuffix('}"'))
        raise StoreRefusal(Status.SUBDOC_XATTR_UNKNOWN_MACRO, f"there is no macro {text[:100]}")

    def _of_document(self, member: str) -> bytes:
        about = json.loads(self._document) if self._document is not None else {}
        if not member and self._document is not None:
            return self._document.encode()
        if not member.startswith(".") or member[1:] not in about:
            raise StoreRefusal(
                Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO, f"$document has no {member[:100]}"
            )
        return json.dumps(about[member[1:]]).encode()

    def finish(self, xattrs: str, body: bytes) -> str:
        """Returns the attributes with the checksum of the final body filled in."""
        if not self._checksum_text:
            return xattrs
        return xattrs.replace(self._checksum_text.decode(), f"0x{crc32c(body):08x}")


def _placeholder(size: int) -> bytes:
    """Returns a random text as long as ``size`` bytes in hexadecimal, which later replace it."""
    return b"0x" + secrets.token_hex(size).encode()
