"""What the blocking and the asyncio client promise alike: one start, a warning, a free loop."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, tzinfo
from typing import Any

import pytest
from consumerkit import PATIENCE, Scripted, fill, marker, mutation, streaming
from peer import Peer
from serverkit import SECRET, users_file

from upriver.consumer import (
    Access,
    AsyncConsumer,
    Checkpoint,
    Consumer,
    ConsumerSettings,
    MemoryCheckpoint,
)
from upriver.consumer.consumer_settings import ConsumerOptions
from upriver.errors import (
    AuthenticationFailed,
    BucketNotFound,
    ConnectionFailed,
    Status,
    UpriverError,
)
from upriver.producer.bootstrap.users import Role
from upriver.producer.server_settings import ServerSettings
from upriver.session.sasl_client import MAX_ITERATIONS, ScramClient
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.messages import PlainResponse, Request
from upriver.wire.protocol_enums import Command

Attempt = Callable[..., UpriverError]


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=2) as running:
        fill(running, 4)
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryProducer]:
    roles = {"ann": tuple(Role), "bob": (Role.READ_DATA,)}
    users = users_file(tmp_path_factory.mktemp("users"), roles)
    settings = ServerSettings(users=users, authentication_delay=0)
    with TemporaryProducer(vbuckets=2, settings=settings) as running:
        yield running


def blocking(source: str, **options: Any) -> UpriverError:
    with pytest.raises(UpriverError) as caught, Consumer(source, end="now", **options) as consumer:
        list(consumer)
    return caught.value


def on_a_loop(source: str, **options: Any) -> UpriverError:
    async def read() -> None:
        async with AsyncConsumer(source, end="now", **options) as consumer:
            async for _ in consumer:
                pass

    with pytest.raises(UpriverError) as caught:
        asyncio.run(asyncio.wait_for(read(), PATIENCE))
    return caught.value


both = pytest.mark.parametrize("attempt", [blocking, on_a_loop])


# ---- life --------------------------------------------------------------------------------


def test_a_consumer_is_started_once(producer: TemporaryProducer) -> None:
    with (
        Consumer(producer.source) as consumer,
        pytest.raises(RuntimeError, match="can be started only once"),
    ):
        consumer.start()

    async def twice() -> None:
        async with AsyncConsumer(producer.source) as consumer:
            with pytest.raises(RuntimeError, match="can be started only once"):
                await consumer.start()
            assert consumer.status().vbuckets  # the first one goes on
        with pytest.raises(RuntimeError, match="can be started only once"):
            await consumer.start()

    asyncio.run(twice())


def test_what_is_not_closed_warns(producer: TemporaryProducer) -> None:
    consumer = Consumer(producer.source).start()
    engine, loop, thread = consumer._engine, consumer._loop, consumer._thread
    assert loop is not None
    assert thread is not None
    with pytest.warns(ResourceWarning, match=r"Consumer of couchbase://.* was not closed"):
        del consumer
    asyncio.run_coroutine_threadsafe(engine.stop(), loop).result(PATIENCE)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()

    async def forgets() -> None:
        consumer = await AsyncConsumer(producer.source).start()
        engine = consumer._engine
        with pytest.warns(ResourceWarning, match=r"AsyncConsumer of couchbase://.* was not closed"):
            del consumer
        await engine.stop()

    asyncio.run(forgets())


def test_what_is_closed_or_never_began_does_not_warn(producer: TemporaryProducer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Consumer(producer.source)
        AsyncConsumer(producer.source)
        with Consumer(producer.source):
            pass
        with pytest.raises(ConnectionFailed):
            Consumer("couchbase://127.0.0.1:1/default").start()
        gc.collect()


def test_options_are_the_fields_of_the_settings() -> None:
    fields = {field.name for field in dataclasses.fields(ConsumerSettings)}
    assert set(ConsumerOptions.__annotations__) == {f for f in fields if not f.startswith("_")}


# ---- the caller's loop is free -----------------------------------------------------------


def changes_and_position(source: str, **options: Any) -> tuple[list[int], Checkpoint]:
    with Consumer(source, **options) as consumer:
        return [change.seqno for change in consumer], consumer.position()


def batches_on_a_loop(source: str, **options: Any) -> tuple[list[int], Checkpoint]:
    async def read() -> tuple[list[int], Checkpoint]:
        async with AsyncConsumer(source, **options) as consumer:
            found = [batch.column("seqno") async for batch in consumer.batches()]
            return [int(seqno.as_py()) for seqnos in found for seqno in seqnos], consumer.position()

    return asyncio.run(asyncio.wait_for(read(), PATIENCE))


@pytest.mark.parametrize("read", [changes_and_position, batches_on_a_loop])
@pytest.mark.parametrize("end", [1, 5, 7])
def test_an_end_seqno_is_where_reading_ends(
    read: Callable[..., tuple[list[int], Checkpoint]], end: int
) -> None:
    """Also in the middle of a snapshot, and where the server sends more."""
    said = [
        marker(0, 6, opaque=0, vbucket=0),
        *(mutation(seqno, opaque=0, vbucket=0) for seqno in (2, 3, 4, 6)),
        marker(7, 9, opaque=0, vbucket=0),
        *(mutation(seqno, opaque=0, vbucket=0) for seqno in (7, 9)),
    ]
    script = streaming(*said, m.StreamEnd(vbucket=0))
    with Scripted(script, vbuckets=1, seqno=9) as server:
        seqnos, position = read(server.source, end={0: end})
    assert seqnos == [seqno for seqno in (2, 3, 4, 6, 7, 9) if seqno <= end]
    assert position.position(0).seqno == end
    with TemporaryProducer(vbuckets=1) as producer:
        fill(producer, 9)
        seqnos, position = read(producer.source, end={0: end})
        assert seqnos == list(range(1, end + 1))
        rest, _ = read(producer.source, start=position, end={0: 9})
        assert rest == list(range(end + 1, 10))


@pytest.mark.parametrize("read", [changes_and_position, batches_on_a_loop])
@pytest.mark.parametrize("zone", [UTC, None])
def test_reading_can_begin_at_a_time(
    read: Callable[..., tuple[list[int], Checkpoint]], zone: tzinfo | None
) -> None:
    """The position counts what was left out too."""
    moment = datetime(2026, 6, 1, 12, tzinfo=zone)
    cas = int(moment.replace(tzinfo=UTC).timestamp()) * 10**9
    times = [cas - 1, cas, cas - 2**16, cas + 2**16, 5]
    said = [
        mutation(seqno, opaque=0, vbucket=0, cas=time) for seqno, time in enumerate(times, start=1)
    ]
    script = streaming(marker(0, 5, opaque=0, vbucket=0), *said, m.StreamEnd(vbucket=0))
    with Scripted(script, vbuckets=1) as server:
        seqnos, position = read(server.source, end="now", since=moment)
        assert seqnos == [2, 4]
        assert position.position(0).seqno == 5
        assert read(server.source, end="now", since=datetime.max)[0] == []


def test_hashing_a_password_does_not_hold_the_loop_up(
    guarded: TemporaryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, loop_is_free = threading.Event(), threading.Event()
    real = ScramClient.hashing

    def hashing(self: ScramClient, challenge: bytes) -> Callable[[], bytes]:
        work = real(self, challenge)

        def slow() -> bytes:
            began.set()
            assert loop_is_free.wait(PATIENCE), "the loop was held"
            return work()

        return slow

    async def read() -> None:
        access = Access(user="ann", password=SECRET)
        consumer = AsyncConsumer(guarded.source, access=access, connect_timeout=PATIENCE)
        starting = asyncio.create_task(consumer.start())
        while not began.is_set():
            await asyncio.sleep(0.001)
        loop_is_free.set()
        await (await starting).close()

    monkeypatch.setattr(ScramClient, "hashing", hashing)
    asyncio.run(asyncio.wait_for(read(), PATIENCE))


@both
def test_a_server_that_wants_too_much_hashing_is_not_believed(attempt: Attempt) -> None:
    def answer(request: Request) -> Any:
        if isinstance(request, kv.SaslListMechanisms):
            return b"SCRAM-SHA512"
        if isinstance(request, kv.SaslAuth):
            nonce = dict(part.split(b"=", 1) for part in request.payload[3:].split(b","))[b"r"]
            value = b"r=" + nonce + b"x,s=c2FsdA==,i=%d" % (10 * MAX_ITERATIONS)
            return PlainResponse(
                command=Command.SASL_AUTH,
                opaque=request.opaque,
                status=Status.AUTH_CONTINUE,
                value=value,
            )
        return None

    with Peer(answer) as peer:
        error = attempt(str(peer.source), access=Access(user="ann", password="secret"))
    assert isinstance(error, AuthenticationFailed)
    assert f"wants {10 * MAX_ITERATIONS} iterations of hashing" in str(error)


def test_saving_does_not_hold_the_loop_up(producer: TemporaryProducer) -> None:
    loop_is_free = threading.Event()

    class Slow(MemoryCheckpoint):
        def save(self, checkpoint: Checkpoint) -> None:
            assert loop_is_free.wait(PATIENCE), "the loop was held"
            super().save(checkpoint)

    async def read() -> None:
        store = Slow()
        async with AsyncConsumer(producer.source, end="now", checkpoint=store) as consumer:
            async for _ in consumer:
                pass
            saving = asyncio.create_task(consumer.save())
            again = asyncio.create_task(consumer.save())
            await asyncio.sleep(0)
            loop_is_free.set()
            await asyncio.gather(saving, again)
            assert store.load() == consumer.position()

    asyncio.run(asyncio.wait_for(read(), PATIENCE))


# ---- errors in plain words ---------------------------------------------------------------


@both
def test_a_wrong_password_is_named_with_its_user_and_server(
    guarded: TemporaryProducer, attempt: Attempt
) -> None:
    error = attempt(guarded.source, access=Access(user="ann", password="wrong"))
    assert str(error) == (
        f"authentication failed for user 'ann' at 127.0.0.1:{guarded.port}; "
        "check the user and the password"
    )


@both
def test_a_user_without_the_role_is_told_which_role(
    guarded: TemporaryProducer, attempt: Attempt
) -> None:
    error = attempt(guarded.source, access=Access(user="bob", password=SECRET))
    assert "denied" in str(error)
    assert "the role Data DCP Reader" in str(error)


@both
def test_nobody_at_a_server_with_users_is_told_to_give_one(
    guarded: TemporaryProducer, attempt: Attempt
) -> None:
    error = attempt(guarded.source)
    assert isinstance(error, BucketNotFound)
    assert str(error) == (
        f"access to bucket 'default' denied at 127.0.0.1:{guarded.port}; give a user and a password"
    )


@both
def test_tls_at_a_plain_port_is_told_to_use_the_other_scheme(
    producer: TemporaryProducer, attempt: Attempt
) -> None:
    source = producer.source.replace("couchbase://", "couchbases://")
    error = attempt(source, access=Access(insecure=True))
    assert str(error) == (
        f"127.0.0.1:{producer.port} does not speak TLS; use couchbase:// for plain ports"
    )


@both
@pytest.mark.parametrize("tls", [False, True])
def test_a_silent_port_is_named_with_the_step_and_the_time(attempt: Attempt, tls: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it connects, and nobody answers
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        error = attempt(f"couchbase{'s' * tls}://{address}/default", connect_timeout=0.3)
    waited_for = "the TLS handshake for 0.3 s" if tls else "Hello was not answered for 0.3 s"
    assert str(error).startswith(f"{address} did not answer")
    assert waited_for in str(error)
    assert "couchbase" in error.hint  # type: ignore[attr-defined]


@both
def test_a_server_that_stops_answering_is_named_with_the_request(attempt: Attempt) -> None:
    def script(talk: Any, request: Any) -> bool:
        return isinstance(request, kv.GetClusterConfig)

    with Scripted(script) as server:
        error = attempt(server.source, answer_timeout=0.3)
    assert "did not answer GetClusterConfig for 0.3 s" in str(error)
