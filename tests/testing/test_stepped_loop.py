"""An event loop whose time and steps are the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from upriver.testing.stepped_loop import SteppedLoop


@pytest.fixture
def loop() -> Iterator[SteppedLoop]:
    loop = SteppedLoop(others=lambda: None)  # type: ignore[abstract]
    yield loop
    loop.close()


def test_steps_come_in_order_and_one_at_a_time(loop: SteppedLoop) -> None:
    seen: list[int] = []
    for number in range(3):
        loop.call_soon(seen.append, number)
    loop.call_soon(seen.append, 9).cancel()
    assert loop.step()
    assert seen == [0]
    loop.settle()
    assert seen == [0, 1, 2]
    assert not loop.step()


def test_others_are_waited_for_and_heard_after_what_was_asked_before() -> None:
    """Whatever moment they choose: here, the middle of a step."""
    seen: list[str] = []
    loop = SteppedLoop(others=lambda: seen.append("waited"))  # type: ignore[abstract]

    def first() -> None:
        loop.call_soon_threadsafe(seen.append, "from a thread")
        loop.call_soon(seen.append, "second")

    loop.call_soon(first)
    assert loop.step()
    assert seen == ["waited"]
    loop.call_soon(seen.append, "third")
    loop.settle()
    assert [one for one in seen if one != "waited"] == ["second", "third", "from a thread"]
    loop.close()


def test_time_passes_only_when_told_and_from_timer_to_timer(loop: SteppedLoop) -> None:
    seen: list[tuple[str, float]] = []
    loop.call_later(2, lambda: seen.append(("later", loop.time())))
    loop.call_at(1, lambda: seen.append(("sooner", loop.time())))
    loop.call_later(1.5, lambda: seen.append(("never", loop.time()))).cancel()
    loop.settle()
    assert seen == []
    loop.advance(1.75)
    assert seen == [("sooner", 1)]
    assert loop.time() == 1.75
    loop.advance(1)
    assert seen == [("sooner", 1), ("later", 2)]


def test_coroutines_take_the_time_they_need(loop: SteppedLoop) -> None:
    async def slow() -> str:
        await asyncio.sleep(1000)
        assert asyncio.get_running_loop() is loop
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 500)
        return "done"

    assert loop.run(slow()) == "done"
    assert loop.time() == 1500


def test_a_fault_comes_out_of_the_step_that_met_it(loop: SteppedLoop) -> None:
    def fail() -> None:
        raise LookupError("of the test's own")

    seen: list[int] = []
    loop.call_soon(fail)
    loop.call_soon(seen.append, 1)
    with pytest.raises(LookupError, match="own"):
        loop.settle()
    loop.settle()
    assert seen == [1]


def test_a_fault_of_a_task_that_nobody_awaits_comes_out_too(loop: SteppedLoop) -> None:
    async def fail() -> None:
        raise LookupError("of the test's own")

    loop.create_task(fail())
    with pytest.raises(LookupError, match="own"):
        loop.advance(1)


def test_it_works_within_another_loop(loop: SteppedLoop) -> None:
    async def outer() -> None:
        around = asyncio.get_running_loop()
        assert loop.run(asyncio.sleep(5, "inner")) == "inner"
        assert asyncio.get_running_loop() is around

    asyncio.run(outer())


def test_without_a_server_connections_are_refused(loop: SteppedLoop) -> None:
    with pytest.raises(ConnectionRefusedError):
        loop.connect()
