"""Reads and writes single documents of a bucket by key, one blocking request at a time.

Meant for inspection and experiments. To write many documents, use `writer`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

from ..._unclosed import warn_unclosed
from ...errors import Status
from ...model import Datatype
from ...session.conversation import Conversation
from ...wire import kv_messages as kv
from ...wire.messages import Response
from ...wire.protocol_enums import Feature
from ...wire.values import unwrap
from ..topology.cluster_map import ClusterMap, vbucket_of
from ..topology.cluster_view import Topology
from ..topology.collection_names import Collections
from ..topology.request_routing import ask_owners, renew_map
from ..transport.access import Access
from ..transport.blocking_connection import CONNECT_SECONDS, BlockingNodes
from ..transport.connection_string import Address, Source
from .document_checks import WRITING, checked_key, checked_value, refused

_DEFAULT: Final = "_default._default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document with its metadata, decompressed and without extended attributes."""

    key: bytes
    value: bytes
    cas: int
    flags: int
    datatype: Datatype
    #: Seconds since 1970 when it expires; 0 for never.
    expiry: int
    rev: int
    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The version of a document that a write created."""

    cas: int
    vbucket: int


class Documents:
    """Reads and writes documents of one bucket, each at the node that owns its vbucket.

    If the vbucket is moving to another node, or the connection is lost, the request is repeated for
    ``patience`` seconds. A repeated deletion may get NOT_FOUND because the first attempt succeeded;
    the document is deleted in either case.
    """

    def __init__(
        self,
        source: Source,
        access: Access | None = None,
        *,
        timeout: float = CONNECT_SECONDS,
        patience: float = 5.0,
    ) -> None:
        self._topology = Topology(source)
        self._nodes = BlockingNodes(self._topology, access or Access(), timeout=timeout)
        self._patience = patience
        try:
            answered = self._nodes.run(renew_map(self._topology, names=True, patience=patience))
        except BaseException:
            self.close()
            raise
        self._has_collections = self._topology.has_feature(answered, Feature.COLLECTIONS)

    def close(self) -> None:
        self._nodes.close()

    def __del__(self) -> None:
        nodes = getattr(self, "_nodes", None)
        if nodes is not None and nodes.connected:
            warn_unclosed(self, self._topology.source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def map(self) -> ClusterMap:
        return self._topology.map

    @property
    def nodes(self) -> list[Address]:
        """The nodes of the newest map that is known."""
        return self._topology.nodes

    @property
    def collections(self) -> Collections:
        return self._topology.collections

    # ---- requests ------------------------------------------------------------------------

    def get(self, key: bytes, *, collection: str = "") -> Document | None:
        """Returns the document; None if it does not exist."""
        got = self._ask(kv.Get(key=key), "reading", collection)
        if got.status is Status.NOT_FOUND:
            return None
        if not isinstance(got, kv.DocumentResponse):
            raise refused("reading", key, got)
        meta = self._ask(kv.GetMeta(key=key), "reading", collection)
        known = meta if isinstance(meta, kv.MetaResponse) and meta.cas == got.cas else None
        _, body = unwrap(got.value, got.datatype)
        return Document(
            key=key,
            value=body,
            cas=got.cas,
            flags=got.flags,
            datatype=got.datatype,
            expiry=known.expiry if known else 0,
            rev=known.rev if known else 0,
            vbucket=self._vbucket(key),
        )

    def set(
        self,
        key: bytes,
        value: bytes,
        *,
        collection: str = "",
        expiry: int = 0,
        flags: int = 0,
        json: bool = False,
        cas: int = 0,
        create: bool = False,
    ) -> Written:
        """Writes a document; with ``cas``, only if the stored version has this CAS.

        With ``create``, only if there is none.
        """
        checked_value(key, value)
        datatype = Datatype.JSON if json else Datatype.RAW
        request: kv.StoreRequest = kv.Set(
            key=key, value=value, flags=flags, expiry=expiry, datatype=datatype, cas=cas
        )
        if create:
            request = kv.Add(key=key, value=value, flags=flags, expiry=expiry, datatype=datatype)
        return self._written(self._ask(request, WRITING, collection), WRITING, key)

    def delete(self, key: bytes, *, collection: str = "", cas: int = 0) -> Written | None:
        """Deletes a document; None if it does not exist."""
        answer = self._ask(kv.Delete(key=key, cas=cas), "deleting", collection)
        if answer.status is Status.NOT_FOUND:
            return None
        return self._written(answer, "deleting", key)

    def touch(self, key: bytes, expiry: int, *, collection: str = "") -> Written | None:
        """Sets the expiry of a document, 0 for never; None if it does not exist."""
        answer = self._ask(kv.Touch(key=key, expiry=expiry), "touching", collection)
        if answer.status is Status.NOT_FOUND:
            return None
        return self._written(answer, "touching", key)

    # ---- sending -------------------------------------------------------------------------

    def _ask(self, request: kv.DocumentRequest, doing: str, collection: str) -> Response:
        """Sends a request to the owner of its key's vbucket; retries temporary refusals.

        ``doing`` says what it does to the document, in an error message.
        """
        number = 0 if collection in ("", _DEFAULT) else self.collections.id_of(collection)
        vbucket = self._vbucket(checked_key(request.key, number))
        placed = replace(
            request, vbucket=vbucket, collection=number if self._has_collections else None
        )
        conversation = ask_owners(
            self._topology,
            [vbucket],
            lambda _: (_answer(placed, doing),),
            patience=self._patience,
            whole=True,
        )
        return self._nodes.run(conversation)[vbucket]

    def _vbucket(self, key: bytes) -> int:
        return vbucket_of(key, len(self.map.vbuckets))

    def _written(self, answer: Response, doing: str, key: bytes) -> Written:
        if answer.status is not Status.SUCCESS or not isinstance(answer, kv.MutationResponse):
            raise refused(doing, key, answer)
        return Written(cas=answer.cas, vbucket=self._vbucket(key))


def _answer(request: kv.DocumentRequest, doing: str) -> Conversation[dict[int, Response]]:
    answer: Response = yield request
    if answer.status.retriable:
        raise refused(doing, request.key, answer)
    return {request.vbucket: answer}
