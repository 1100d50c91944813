"""What Spark forks its Python workers from on one machine: its own daemon, but for one traceback.

Spark closes a worker that was idle for a minute. The worker cannot say any more that it has
noticed, and Spark's daemon prints a traceback of that, in the middle of whatever is on the
terminal. Workers that end so have nothing to tell. Before a fork nothing may be imported that
starts threads.
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
