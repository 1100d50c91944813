"""HELLO negotiation: which features the server accepts, and why not the others. No I/O, no state.

Every HELLO starts anew: a feature that it does not offer is off. A feature is accepted only if it
is fully implemented, because a client relies on every feature that was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ...wire.protocol_enums import Feature


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    """Properties of the server's configuration that decide about features."""

    tls: bool = False
    snappy: bool = True
    collections: bool = True
    #: Whether durable writes can wait for replicas. Must be false without replication.
    sync_replication: bool = False


class When(Enum):
    """The condition on which a feature is accepted."""

    ALWAYS = auto()
    NEVER = auto()
    #: The attribute of `ServerFeatures` with the feature's name is true.
    IF_SET_UP = auto()


@dataclass(frozen=True, slots=True)
class Rule:
    """When a feature is accepted, and the reason."""

    when: When
    reason: str
    #: A feature that the same HELLO must offer, too.
    needs: Feature | None = None
    #: A feature that contradicts this one. The first of the two in the offer is accepted.
    excludes: Feature | None = None


_YES: Final = When.ALWAYS
_NO: Final = When.NEVER
_IF: Final = When.IF_SET_UP

RULES: Final[dict[Feature, Rule]] = {
    Feature.DATATYPE: Rule(_NO, "retired: JSON, Snappy and xattrs are asked for one by one"),
    Feature.TLS: Rule(_IF, "true of a connection or not"),
    Feature.TCP_NODELAY: Rule(_YES, "sockets are set so", excludes=Feature.TCP_DELAY),
    Feature.TCP_DELAY: Rule(
        _YES, "small packets may wait, and need not", excludes=Feature.TCP_NODELAY
    ),
    Feature.MUTATION_SEQNO: Rule(_YES, "a write is answered with its vbuuid and seqno"),
    Feature.XATTR: Rule(_YES, "documents keep their extended attributes"),
    Feature.XERROR: Rule(_YES, "there is an error map, and errors carry their context"),
    Feature.SELECT_BUCKET: Rule(_YES, "a connection can change its bucket"),
    Feature.SNAPPY: Rule(_IF, "values are taken and sent compressed"),
    Feature.JSON: Rule(_YES, "the datatype says which values are JSON"),
    Feature.DUPLEX: Rule(_YES, "the server may send requests of its own"),
    Feature.CLUSTERMAP_NOTIFICATION: Rule(
        _YES, "a new map is such a request", needs=Feature.DUPLEX
    ),
    Feature.UNORDERED_EXECUTION: Rule(_NO, "answers come in order; change streams depend on it"),
    Feature.TRACING: Rule(_NO, "the server's own time is not measured for each request"),
    Feature.ALT_REQUEST: Rule(_YES, "requests may carry frame infos"),
    Feature.SYNC_REPLICATION: Rule(
        _IF, "the level of a durable write is a frame info", needs=Feature.ALT_REQUEST
    ),
    Feature.COLLECTIONS: Rule(_IF, "keys begin with the id of their collection"),
    Feature.SNAPPY_EVERYWHERE: Rule(_NO, "only values of documents are compressed"),
    Feature.PRESERVE_TTL: Rule(
        _YES, "keeping an expiry is asked for in a frame info", needs=Feature.ALT_REQUEST
    ),
    Feature.VATTR: Rule(_YES, "$document, $vbucket and $XTOC are virtual attributes"),
    Feature.CREATE_AS_DELETED: Rule(_YES, "sub-document commands write tombstones too"),
    Feature.DOCUMENT_MACRO: Rule(_YES, "macros of $document are expanded"),
    Feature.REPLACE_BODY_WITH_XATTR: Rule(_YES, "a body can be taken from an attribute"),
    Feature.UNIT_USAGE: Rule(_NO, "nothing is metered"),
    Feature.NON_BLOCKING_THROTTLE: Rule(_NO, "nothing is throttled"),
    Feature.SUBDOC_REPLICA_READ: Rule(_YES, "sub-documents are read from replicas too"),
    Feature.CLUSTERMAP_KNOWN_VERSION: Rule(_YES, "a map the client has is not sent again"),
    Feature.DEDUPE_NOT_MY_VBUCKET: Rule(_NO, "every misdirected request is answered with the map"),
    Feature.CLUSTERMAP_BRIEF_NOTIFICATION: Rule(
        _YES, "a notification has the version of the map only", needs=Feature.DUPLEX
    ),
}


#: Features that require others in the same HELLO. Couchbase Server refuses the whole HELLO
#: otherwise.
_REQUIRES: Final = {
    Feature.CLUSTERMAP_NOTIFICATION: Feature.DUPLEX,
    Feature.CLUSTERMAP_BRIEF_NOTIFICATION: Feature.DUPLEX,
    Feature.VATTR: Feature.XATTR,
    Feature.DOCUMENT_MACRO: Feature.XATTR,
}


def contradiction(offered: Iterable[Feature | int]) -> str:
    """Returns what is wrong with an offer as a whole; "" if nothing is."""
    named = set(offered)
    for feature, required in _REQUIRES.items():
        if feature in named and required not in named:
            return f"{feature.name} needs {required.name}"
    return ""


def accept(offered: Iterable[Feature | int], server: ServerFeatures) -> tuple[Feature, ...]:
    """Returns the accepted features of an offer: in the order offered, each once.

    A plain number is a feature unknown to this server. It is never accepted.
    """
    named = dict.fromkeys(feature for feature in offered if isinstance(feature, Feature))
    accepted: list[Feature] = []
    for feature in named:
        rule = RULES[feature]
        if rule.when is When.NEVER or rule.excludes in accepted:
            continue
        if rule.when is When.IF_SET_UP and not getattr(server, feature.name.lower()):
            continue
        # Every feature that another one needs is always accepted, at any place in the offer.
        if rule.needs is not None and rule.needs not in named:
            continue
        accepted.append(feature)
    return tuple(accepted)
