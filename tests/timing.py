"""What the tests took: the time of each lane, and the tests that took the longest.

Processor time is that of a test's own process and of those that ended while it ran; what a fixture
leaves running is counted by the test that ends it.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Any

import pytest
from lanes import LANES

#: How many tests are listed, and how many seconds one must have taken.
_SLOWEST, _SLOW = 20, 1.0
_TOOK = "took"
_BEGAN = pytest.StashKey[tuple[float, float]]()


def _processor() -> float:
    own, ended = (
        resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = time.perf_counter(), _processor()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.when == "teardown":
        wall, processor = item.stash[_BEGAN]
        lane = next(mark.name for mark in item.iter_markers() if mark.name in LANES)
        took = time.perf_counter() - wall, _processor() - processor
        report.user_properties.append((_TOOK, (lane, *took)))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [
        report
        for kind in ("", "passed", "failed", "error", "skipped")
        for report in terminalreporter.stats.get(kind, [])
        if getattr(report, "when", "") == "teardown"
    ]
    took = [(*dict(report.user_properties)[_TOOK], report.nodeid) for report in reports]
    if not took:
        return
    terminalreporter.section("what it took")
    for lane in LANES:
        of_lane = [one for one in took if one[0] == lane]
        if of_lane:
            wall, processor = sum(one[1] for one in of_lane), sum(one[2] for one in of_lane)
            terminalreporter.write_line(
                f"{lane:<11}{len(of_lane):6} tests {wall:8.1f} s {processor:8.1f} CPU s"
            )
    terminalreporter.write_line("the slowest:")
    slow = [one for one in took if one[1] >= _SLOW]
    for _, wall, processor, name in sorted(slow, key=lambda one: -one[1])[:_SLOWEST]:
        terminalreporter.write_line(f"{wall:8.1f} s {processor:8.1f} CPU s  {name}")
