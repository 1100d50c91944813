"""Attacks of servers on clients: silence, endless hashing, nonsense. Every reading must end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from upriver.consumer import AsyncConsumer, Consumer
from upriver.consumer.transport.access import Access
from upriver.errors import UpriverError
from upriver.wire.framing import Framer

from .report import Failed, Row

__all__ = ["ATTACKS"]

Attack = Callable[[Path, Row, float], None]

#: Seconds in which a reading ends, whatever its server does. Its own limits are 10 and less.
PATIENCE = 60.0
HELLO, LIST, AUTHENTICATE = 0x1F, 0x20, 0x21
AUTHENTICATION_GOES_ON = 0x21


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that does this with each connection; yields its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, UpriverError):
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def answer(request: bytes, value: bytes = b"", status: int = 0) -> bytes:
    """A response to a packet."""
    opaque = request[12:16]
    return struct.pack(">BBHBBHI", 0x81, request[1], 0, 0, 0, status, len(value)) + (
        opaque + bytes(8) + value
    )


def requests(connection: socket.socket) -> Iterator[bytes]:
    framer = Framer()
    while data := connection.recv(1 << 16):
        yield from framer.feed(data)


def silent(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def endless_hashing(connection: socket.socket) -> None:
    """Wants ten million rounds of PBKDF2, which take half a minute."""
    for request in requests(connection):
        if request[1] == LIST:
            connection.sendall(answer(request, b"SCRAM-SHA512"))
        elif request[1] == AUTHENTICATE:
            nonce = request.rpartition(b"r=")[2].decode()
            told = f"r={nonce}x,s={b64encode(bytes(16)).decode()},i=10000000"
            connection.sendall(answer(request, told.encode(), AUTHENTICATION_GOES_ON))
        else:
            connection.sendall(answer(request))


def nonsense(connection: socket.socket) -> None:
    """Answers with wrong statuses, bodies, opaques and counts, or not at all."""
    chance = random.Random()
    for request in requests(connection):
        reply = bytearray(answer(request, chance.randbytes(chance.randrange(40))))
        for _ in range(chance.randrange(4)):
            reply[chance.randrange(len(reply))] = chance.randrange(256)
        if chance.random() < 0.9:
            connection.sendall(reply)


def ends(serve: Callable[[socket.socket], None], did: str) -> Attack:
    """Both clients must end with an error, and the loop of the caller must go on meanwhile."""

    def attack(home: Path, row: Row, seconds: float) -> None:
        end, runs = time.monotonic() + seconds, 0
        with server(serve) as port:
            source = f"couchbase://127.0.0.1:{port}/default"
            while not runs or time.monotonic() < end:
                runs += 1
                over: list[object] = []
                thread = threading.Thread(target=_read, args=(source, over), daemon=True)
                thread.start()
                row.gets = [*(row.gets or ()), *asyncio.run(_read_on_loop(source))]
                thread.join(PATIENCE)
                if thread.is_alive():
                    raise Failed(f"Consumer has not ended after {PATIENCE:.0f} s")
                if not isinstance(over[0], UpriverError):
                    raise Failed(f"Consumer ended with {over[0]!r}")
        row.did = f"{did}; {runs} readings with each client (figures: pauses of the caller's loop)"

    return attack


_ACCESS = Access(user="reader", password="secret")


def _read(source: str, over: list[object]) -> None:
    try:
        with Consumer(
            source, access=_ACCESS, end="now", connect_timeout=3.0, give_up_after=20.0
        ) as consumer:
            for _ in consumer:
                pass
        over.append(None)
    except BaseException as error:
        over.append(error)


async def _read_on_loop(source: str) -> list[float]:
    """Reads, and returns how many milliseconds the loop did not go on, again and again."""
    pauses: list[float] = []

    async def tick() -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.01)
            pauses.append((time.perf_counter() - started) * 1000 - 10)

    async def read() -> None:
        async with AsyncConsumer(
            source, access=_ACCESS, end="now", connect_timeout=3.0, give_up_after=20.0
        ) as consumer:
            async for _ in consumer:
                pass

    ticking = asyncio.create_task(tick())
    try:
        async with asyncio.timeout(PATIENCE):
            await read()
        raise Failed("AsyncConsumer ended without an error")
    except UpriverError:
        return pauses
    except TimeoutError:
        raise Failed(f"AsyncConsumer has not ended after {PATIENCE:.0f} s") from None
    finally:
        ticking.cancel()


ATTACKS: dict[str, Attack] = {
    "server that is silent": ends(silent, "accepts, and says nothing"),
    "server that wants endless hashing": ends(endless_hashing, "10 million rounds of PBKDF2"),
    "server that talks nonsense": ends(nonsense, "wrong statuses, bodies and opaques"),
}
