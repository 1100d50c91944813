"""One node of a cluster as a process: ``python -m upriver.cluster.node_process DATA ...``.

It is a producer that waits to be told by its manager which vbuckets it has.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from pathlib import Path
from typing import Final

from ..model import VBucketState
from ..producer.service import Producer
from ..producer.settings import ServerSettings
from ..store import BucketSettings

__all__ = ["main"]

#: Seconds for which writers may keep a vbucket from moving: a pause of that length is short enough
#: for clients to try again.
_TAKEOVER_TIME: Final = 1.0


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description="one node of a cluster")
    parser.add_argument("data", type=Path)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--vbuckets", type=int, required=True)
    parser.add_argument("--users", type=Path)
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = ServerSettings(
        host=chosen.host,
        port=chosen.port,
        users=chosen.users,
        managed=True,
        takeover_time=_TAKEOVER_TIME,
    )
    producer = Producer(
        chosen.data / "store",
        settings,
        bucket=chosen.bucket,
        bucket_settings=BucketSettings(vbuckets=chosen.vbuckets, initial_state=VBucketState.DEAD),
    )
    asyncio.run(_serve(producer))


async def _serve(producer: Producer) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with producer:
        await stopped.wait()


if __name__ == "__main__":
    main()
