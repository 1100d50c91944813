"""The dialects by name, in the order in which a client tries them: the newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .dcp import Dcp
from .draft000 import Draft000
from .draft001 import Draft001
from .draft002 import Draft002
from .interface import Dialect

_NEWEST_FIRST: Final[tuple[type[Dialect], ...]] = (Dcp, Draft001, Draft000, Draft002)
DIALECTS: Final[Mapping[str, type[Dialect]]] = {kind.name: kind for kind in _NEWEST_FIRST}
