"""The key-value front end: a decoded request and a bucket in, responses out, and no socket."""

from .answers import Answer, Blocking, Later, Now, Responses, Write
from .call import NodeView
from .desk import KeyValue
from .roles import ADMINISTERS, READS, STREAMS, WRITES

__all__ = [
    "ADMINISTERS",
    "READS",
    "STREAMS",
    "WRITES",
    "Answer",
    "Blocking",
    "KeyValue",
    "Later",
    "NodeView",
    "Now",
    "Responses",
    "Write",
]
