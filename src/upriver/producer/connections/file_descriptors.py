"""Raises the limit of open files, and computes how many connections fit below it.

A server without a free descriptor can neither accept a connection nor open a file of its store, so
connections are limited with a reserve for everything else.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

logger = logging.getLogger("upriver.producer")

#: Descriptors that are kept from connections: the files of a bucket or two (each may open
#: `upriver.store.rocksdb.MAX_OPEN_FILES`), logs, HTTP connections, the embedding program's own.
RESERVE: Final = 1536


def room_for_connections(wanted: int) -> int:
    """Raises the process's limit as far as needed and allowed; returns how many connections fit.

    If the limit is so low that the reserve is most of it, connections get half of it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVE
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError) as problem:
            logger.warning("the limit of open files stays at %d: %s", soft, problem)
    if soft == resource.RLIM_INFINITY:
        return wanted
    room = min(wanted, max(soft - RESERVE, soft // 2))
    if room < wanted:
        logger.warning(
            "up to %d connections instead of %d: this process may open %d files (ulimit -n)",
            room,
            wanted,
            soft,
        )
    return room
