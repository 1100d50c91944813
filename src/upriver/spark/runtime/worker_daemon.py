"""Spark's Python worker daemon without the traceback of an idle worker's end.

Spark closes the connection of a worker that was idle for a minute. The worker then cannot send its
last message, and Spark's daemon prints a traceback of that to the terminal. This daemon ends such a
worker silently. Before a fork nothing may be imported that starts threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import daemon

if TYPE_CHECKING:
    import socket

_worker = daemon.worker


def _ends_quietly(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except BrokenPipeError:
        return 1  # so the process ends


if __name__ == "__main__":
    daemon.worker = _ends_quietly
    daemon.manager()
