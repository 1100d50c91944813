"""Which features of HELLO a server accepts, and why not the others. No I/O, no state.

Every HELLO starts from nothing: what it does not offer is off again. A feature is accepted only
if everything it promises is implemented, because a client that was told yes relies on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ..wire.names import Feature

__all__ = ["RULES", "Rule", "ServerFeatures", "When", "accept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    """What depends on how a server was set up."""

    tls: bool = False
    snappy: bool = True
    collections: bool = True
    #: Writes that wait for replicas; without replication it would be a promise not kept.
    sync_replication: bool = False


class When(Enum):
    """On what the answer depends."""

    ALWAYS = auto()
    NEVER = auto()
    #: On the member of `ServerFeatures` that has the feature's name.
    IF_SET_UP = auto()


@dataclass(frozen=True, slots=True)
class Rule:
    """When a feature is accepted, and the reason."""

    when: When
    reason: str
    #: Makes no sense without this one in the same HELLO.
    needs: Feature | None = None
    #: Contradicts this one; the first of the two that is offered wins.
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
    Feature.VATTR: Rule(_NO, "virtual attributes are not listed"),
    Feature.CREATE_AS_DELETED: Rule(_NO, "a tombstone cannot be written by sub-document"),
    Feature.DOCUMENT_MACRO: Rule(_NO, "macros are not expanded"),
    Feature.REPLACE_BODY_WITH_XATTR: Rule(_NO, "a body cannot be taken from an attribute"),
    Feature.UNIT_USAGE: Rule(_NO, "nothing is metered"),
    Feature.NON_BLOCKING_THROTTLE: Rule(_NO, "nothing is throttled"),
    Feature.SUBDOC_REPLICA_READ: Rule(_NO, "sub-documents are read from active vbuckets only"),
    Feature.CLUSTERMAP_KNOWN_VERSION: Rule(_YES, "a map the client has is not sent again"),
    Feature.DEDUPE_NOT_MY_VBUCKET: Rule(_NO, "every misdirected request is answered with the map"),
    Feature.CLUSTERMAP_BRIEF_NOTIFICATION: Rule(_NO, "a notification carries the map"),
}


def accept(offered: Iterable[Feature | int], server: ServerFeatures) -> tuple[Feature, ...]:
    """What of an offer is accepted: in the order offered, each once.

    Numbers are features without a name here, which nobody has implemented.
    """
    named = dict.fromkeys(feature for feature in offered if isinstance(feature, Feature))
    accepted: list[Feature] = []
    for feature in named:
        rule = RULES[feature]
        if rule.when is When.NEVER or rule.excludes in accepted:
            continue
        if rule.when is When.IF_SET_UP and not getattr(server, feature.name.lower()):
            continue
        # All that is needed is accepted always, wherever it stands in the offer.
        if rule.needs is not None and rule.needs not in named:
            continue
        accepted.append(feature)
    return tuple(accepted)
