"""Key-value commands: turn a decoded request and a bucket into responses. No sockets here."""

from .dispatch import KeyValue
from .handler_results import Answer, BackgroundWork, Blocking, Later, Now, Responses, Several, Write
from .request_context import NodeView
from .required_roles import ADMINISTERS, READS, STREAMS, WRITES

__all__ = [
    "ADMINISTERS",
    "READS",
    "STREAMS",
    "WRITES",
    "Answer",
    "BackgroundWork",
    "Blocking",
    "KeyValue",
    "Later",
    "NodeView",
    "Now",
    "Responses",
    "Several",
    "Write",
]
