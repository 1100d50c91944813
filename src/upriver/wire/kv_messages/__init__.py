"""The messages of the memcached key-value commands, as dataclasses.

A quiet request (``quiet=True``) is answered only with an error (writes) or a hit (reads). Documents
are addressed by ``collection`` (None if collections are not negotiated) and ``key``.
"""

from __future__ import annotations

from . import connections, documents, vbuckets
from .connections import *
from .documents import *
from .vbuckets import *

__all__ = [*connections.__all__, *documents.__all__, *vbuckets.__all__]
