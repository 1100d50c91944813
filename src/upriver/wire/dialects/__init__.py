"""One file per draft of the protocol behind one interface, and sniffing which one a peer speaks."""

from .dcp import Dcp
from .draft000 import Draft000
from .draft001 import Draft001
from .draft002 import Draft002
from .interface import Dialect
from .sniff import DialectPin, sniff

__all__ = ["Dcp", "Dialect", "DialectPin", "Draft000", "Draft001", "Draft002", "sniff"]
