"""One node of a cluster as a process: ``python -m upriver.cluster.node_main DATA ...``.

It is a producer that serves nothing until its manager has sent it the map of its vbuckets. It ends
by itself when its directory is removed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path
from typing import Final

from ..errors import UpriverError
from ..logs import JSON_VARIABLE, configure_logging
from ..model import VBucketState
from ..producer.embedded import Producer
from ..producer.server_settings import ServerSettings
from ..producer.write_lease import NodeIdentity
from ..store import BucketSettings
from .node_lock import EPOCH_FILE, NodeLock

logger = logging.getLogger("upriver.cluster")

#: Seconds for which writers may delay a takeover; after that they are refused until it is done,
#: which clients retry.
_TAKEOVER_TIME: Final = 1.0
#: Seconds between two checks that the directory still exists.
_LOOK_SECONDS: Final = 1.0


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description="one node of a cluster")
    parser.add_argument("data", type=Path)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--http-port", type=int, default=0)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--bucket-uuid", default="")
    parser.add_argument("--vbuckets", type=int, required=True)
    parser.add_argument("--users", type=Path, required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--lease", type=float, required=True)
    chosen = parser.parse_args()
    configure_logging(logging.INFO, as_json=bool(os.environ.get(JSON_VARIABLE)))
    os.umask(0o077)  # its files are readable by their owner only
    try:
        lock = NodeLock(chosen.data)
    except UpriverError as problem:
        raise SystemExit(str(problem)) from None
    lock.write(pid=os.getpid())
    try:
        asyncio.run(_serve(_producer(chosen, lock), lock))
    except (UpriverError, OSError) as problem:
        with contextlib.suppress(OSError):
            lock.write(problem=str(problem))
        raise SystemExit(str(problem)) from None


def _producer(chosen: argparse.Namespace, lock: NodeLock) -> Producer:
    settings = ServerSettings(
        host=chosen.host,
        port=chosen.port,
        http_port=chosen.http_port,
        users=chosen.users,
        member=NodeIdentity(
            cluster=chosen.cluster,
            node=chosen.node,
            lease=chosen.lease,
            lock=lock.name,
            epoch_file=chosen.data / EPOCH_FILE,
        ),
        takeover_time=_TAKEOVER_TIME,
    )
    return Producer(
        chosen.data / "store",
        settings,
        bucket=chosen.bucket,
        bucket_settings=BucketSettings(vbuckets=chosen.vbuckets, initial_state=VBucketState.DEAD),
        bucket_uuid=chosen.bucket_uuid,
    )


async def _serve(producer: Producer, lock: NodeLock) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with producer:
        while not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await stopped.wait()
            if not lock.is_there:
                logger.error("the directory of this node was removed: it ends")
                os._exit(1)  # its files are gone, so the store cannot be closed properly


if __name__ == "__main__":
    main()
