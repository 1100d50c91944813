"""Forwards packets between two nodes, so that one replicates from the other.

    producer node <── opened as producer ── relay ── opened as consumer ──> consumer node

The consumer node sends its requests to the connection on which it was opened, and the relay
carries them to the producer node; the streams come back the same way. The relay itself only
requests the consumer to add and close streams, and sees which have ended. It keeps no bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ..errors import ConnectionFailed, Status, UpriverError
from ..wire import messages as m
from ..wire.dialects import Dcp
from ..wire.header import FLEX_RESPONSE, RESPONSE, vbucket_of
from ..wire.protocol_enums import Command, StreamFlag
from .raw_connection import CONSUMER, PRODUCER, Endpoint, Wire

_DIALECT: Final = Dcp(collections=True)
_ADD_STREAM: Final = Dcp.table.opcodes[Command.ADD_STREAM]
_CLOSE_STREAM: Final = Dcp.table.opcodes[Command.CLOSE_STREAM]
_STREAM_END: Final = Dcp.table.opcodes[Command.STREAM_END]
_RESPONSES: Final = frozenset({RESPONSE, FLEX_RESPONSE})
#: Seconds without a byte of one side after which the relay ends. The replica enables noops every
#: 20 seconds, so both sides send more often than that. A connection of which nothing is left but
#: this end would otherwise keep a replica behind until the producer's idle timeout.
_SILENCE: Final = 60.0
#: Seconds for a stream to be settled. A replica that has to roll back first rewrites its files.
_PATIENCE: Final = 60.0


class ReplicationRelay:
    """Two connections and what goes on between them. `run` passes on until either is lost."""

    def __init__(
        self,
        producer: Wire,
        consumer: Wire,
        on_end: Callable[[int], None],
        watch: Callable[[bool, bytes], None] | None = None,
    ) -> None:
        """``on_end`` is called with vbuckets whose stream is over.

        ``watch`` sees every packet: whether it is the producer's, and its bytes.
        """
        self._producer = producer
        self._consumer = consumer
        self._on_end = on_end
        self._watch = watch
        self._waiting: dict[int, asyncio.Future[m.Response]] = {}
        self._opaque = 0
        #: When the producer and the consumer last sent something.
        self._heard: dict[Wire, float] = {}

    @classmethod
    async def open(
        cls,
        source: Endpoint,
        target: Endpoint,
        name: str,
        on_end: Callable[[int], None],
        watch: Callable[[bool, bytes], None] | None = None,
    ) -> ReplicationRelay:
        """Connects to both; what is written at the target comes from the source."""
        producer = await Wire.open(source, name, PRODUCER)
        try:
            consumer = await Wire.open(target, name, CONSUMER)
        except BaseException:
            producer.close()
            raise
        return cls(producer, consumer, on_end, watch)

    async def run(self) -> None:
        """Passes packets on; ends with `ConnectionFailed`, and with both connections."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._down())
                group.create_task(self._up())
                group.create_task(self._end_when_silent())
        except* UpriverError as failed:
            raise failed.exceptions[0] from None
        finally:
            self.close()

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.cancel()

    # ---- what the relay itself says ------------------------------------------------------

    async def add(self, vbucket: int, flags: StreamFlag = StreamFlag.NONE) -> Status:
        """Has the consumer ask for a stream; returns how that was settled."""
        return await self._ask(m.AddStream(vbucket=vbucket, flags=flags, opaque=self._next()))

    async def close_stream(self, vbucket: int) -> Status:
        """Has the consumer end a stream."""
        return await self._ask(m.CloseStream(vbucket=vbucket, opaque=self._next()))

    def _next(self) -> int:
        self._opaque += 1
        return self._opaque

    async def _ask(self, request: m.AddStream | m.CloseStream) -> Status:
        answer: asyncio.Future[m.Response] = asyncio.get_running_loop().create_future()
        self._waiting[request.opaque] = answer
        packet = _DIALECT.encode(request)
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._consumer.send(packet)
                return (await asyncio.shield(answer)).status
        except TimeoutError:
            raise ConnectionFailed(
                f"did not settle the stream of vbucket {request.vbucket} for {_PATIENCE:g} s",
                "see its log",
                where=self._consumer.where,
            ) from None
        except asyncio.CancelledError:
            if answer.cancelled():
                raise ConnectionFailed(
                    f"the relay to {{where}} ended before the stream of vbucket {request.vbucket}"
                    " was settled",
                    "it is tried again",
                    where=self._consumer.where,
                ) from None
            raise
        finally:
            self._waiting.pop(request.opaque, None)

    # ---- what passes ---------------------------------------------------------------------

    async def _end_when_silent(self) -> None:
        """Raises `ConnectionFailed` when one side has sent nothing for too long."""
        now = asyncio.get_running_loop().time
        self._heard = dict.fromkeys((self._producer, self._consumer), now())
        while (ends_at := min(self._heard.values()) + _SILENCE) > now():
            await asyncio.sleep(ends_at - now())
        silent = min(self._heard, key=self._heard.__getitem__)
        side = "producer" if silent is self._producer else "consumer"
        raise ConnectionFailed(
            f"sent nothing for {_SILENCE:.0f} s as the {side} of a relay",
            "is it stopped?",
            where=silent.where,
        )

    async def _packets(self, wire: Wire) -> list[bytes]:
        packets = await wire.packets()
        self._heard[wire] = asyncio.get_running_loop().time()
        return packets

    async def _down(self) -> None:
        while True:
            packets = await self._packets(self._producer)
            await self._consumer.send(b"".join(packets))
            for packet in packets:
                if self._watch is not None:
                    self._watch(True, packet)
                if packet[1] == _STREAM_END and packet[0] not in _RESPONSES:
                    self._on_end(vbucket_of(packet))

    async def _up(self) -> None:
        while True:
            packets = await self._packets(self._consumer)
            if self._watch is not None:
                for packet in packets:
                    self._watch(False, packet)
            passed = [packet for packet in packets if not self._is_mine(packet)]
            await self._producer.send(b"".join(passed))

    def _is_mine(self, packet: bytes) -> bool:
        """Takes the answers to the relay's own requests out of what passes."""
        is_answer = packet[0] in _RESPONSES
        if packet[1] == _CLOSE_STREAM and not is_answer:
            self._on_end(vbucket_of(packet))  # the consumer gives it up by itself
            return False
        if not is_answer or packet[1] not in (_ADD_STREAM, _CLOSE_STREAM):
            return False
        message = _DIALECT.decode(packet)
        waiting = self._waiting.get(message.opaque)
        if waiting is not None and not waiting.done() and isinstance(message, m.Response):
            waiting.set_result(message)
        return True
