"""`BucketGroupStore`: the cells of groups as documents of a bucket, in a collection of their own.

A cell is a document whose key is its name, and its version is the document's CAS. Heartbeats
expire, so that those of members that died with their whole group do not stay.
"""

from __future__ import annotations

import math
import threading
from typing import Final

from ...errors import ConfigError, Status, StatusError
from ..topology.collection_names import Collections
from ..transport.access import Access
from ..transport.collection_manager import CollectionManager
from ..transport.connection_string import Source
from ..writing.documents import Documents
from .cells import Stored

#: The collection that is used if none is named; it is created if it does not exist.
COLLECTION: Final = "upriver.groups"
#: Seconds for which a request is repeated while a vbucket moves: a lease must not wait for longer.
_PATIENCE: Final = 2.0
#: A document is not in the state that a write expects.
_OTHER_VERSION: Final = frozenset({Status.EXISTS, Status.NOT_FOUND, Status.NOT_STORED})


class BucketGroupStore:
    """Keeps the cells of groups in a collection of a bucket, by default ``upriver.groups``.

    It connects when it is first used. The user may read and write the collection, and create it if
    it does not exist.
    """

    def __init__(
        self, source: str | Source, access: Access | None = None, *, collection: str = COLLECTION
    ) -> None:
        if collection.count(".") != 1:
            raise ConfigError(f"{collection!r} is no collection; give SCOPE.NAME")
        self.source = Source.parse(source) if isinstance(source, str) else source
        self.collection = collection
        self._access = access or Access()
        self._lock = threading.Lock()
        self._documents: Documents | None = None

    def __str__(self) -> str:
        return f"{self.source} {self.collection}"

    def read(self, cell: str) -> Stored | None:
        with self._lock:
            found = self._opened().get(cell.encode(), collection=self.collection)
        return None if found is None else Stored(found.value, found.cas)

    def write(self, cell: str, content: bytes, version: int, *, expires: float = 0) -> int | None:
        with self._lock:
            try:
                return (
                    self._opened()
                    .set(
                        cell.encode(),
                        content,
                        collection=self.collection,
                        expiry=math.ceil(expires),
                        json=True,
                        cas=version,
                        create=version == 0,
                    )
                    .cas
                )
            except StatusError as refusal:
                if refusal.status in _OTHER_VERSION:
                    return None
                raise

    def remove(self, cell: str) -> None:
        with self._lock:
            self._opened().delete(cell.encode(), collection=self.collection)

    def close(self) -> None:
        with self._lock:
            if self._documents is not None:
                self._documents.close()
                self._documents = None

    def _opened(self) -> Documents:
        if self._documents is None:
            documents = self._connected()
            if not self._is_in(documents):
                documents.close()
                documents = self._created(documents.collections)
            self._documents = documents
        return self._documents

    def _connected(self) -> Documents:
        return Documents(self.source, self._access, patience=_PATIENCE)

    def _is_in(self, documents: Documents) -> bool:
        try:
            documents.collections.id_of(self.collection)
        except ConfigError:
            return False
        return True

    def _created(self, known: Collections) -> Documents:
        """Creates the collection, and connects; another member may be faster, and be allowed to."""
        refusal: ConfigError | None = None
        try:
            management = CollectionManager(self.source, self._access)
            management.ensure_collection(self.collection, known_scopes=known.scopes.values())
        except ConfigError as problem:
            refusal = problem
        documents = self._connected()
        if refusal is not None and not self._is_in(documents):
            documents.close()
            raise ConfigError(
                f"the collection {self.collection} for groups does not exist, and {refusal}; "
                f"create it: upriver collections create SOURCE {self.collection}"
            )
        return documents
