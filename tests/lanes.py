"""The lane of every test, the tests of the gate, and what may run at the same time as what.

A test is in exactly one lane, which its path decides: ``unit`` unless a line below says otherwise.
`make unit` runs that lane alone, `pytest -m spark` another one.

The gate is what `make test` runs, in minutes: the lanes of one process, and of the other lanes the
tests marked ``story``, at least one for each thing that a user can do. `pytest` without paths runs
the gate, `pytest --slow` all the others but those marked ``release``, and `pytest --release` those;
`pytest PATH` runs what it names, whatever that is.

Tests run in several processes. Those of a group run in one process, one after the other: a file is
a group, because its tests share what they have started, and files that would starve each other of
memory or cores are one group together. Groups that take long are started first and those of the
lane unit last, so that no process is left with much when the others have ended.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent

#: What a lane has that the lanes before it have not.
LANES = {
    "unit": "one process: no other program, no Java, no browser",
    "simulation": "one process, for long: random bytes and histories, models, simulated worlds",
    "process": "starts processes: commands, servers, clusters, builds",
    "spark": "starts Spark",
    "browser": "opens pages in a browser",
    "chaos": "kills, cuts and delays at random for a long time",
}

#: The lanes whose tests start no process.
_ONE_PROCESS = {"unit", "simulation"}

#: By file or directory; the longest that fits counts.
_LANE_OF = {
    "": "unit",
    "cli": "process",
    "cli/test_table_commands.py": "spark",
    "cluster": "process",
    "cluster/test_chaos.py": "chaos",
    "cluster/test_reconcile.py": "unit",
    "cluster/test_membership.py": "unit",
    "cluster/test_old_peers.py": "unit",
    "cluster/test_prepared_writes.py": "unit",
    "cluster/test_copied_cluster.py": "spark",
    "cluster/test_mirror_chaos.py": "chaos",
    "cluster/test_placement.py": "unit",
    "cluster/test_raw_connection.py": "unit",
    "cluster/test_replica_role.py": "unit",
    "cluster/test_replica_streams.py": "unit",
    "cluster/test_command_queue.py": "unit",
    "consumer/test_checkpoints.py": "process",
    "consumer/test_groups.py": "process",
    "consumer/test_killed_readers.py": "process",
    "consumer/test_memory_schedules.py": "chaos",
    "dashboard/test_dashboard_commands.py": "process",
    "dashboard/test_dashboard_page.py": "browser",
    "dashboard/test_pipeline_alerts.py": "process",
    "producer/test_bounded_resources.py": "process",
    "producer/test_killed_server.py": "process",
    "producer/test_memcached_suites.py": "process",
    "producer/test_node_sdk.py": "process",
    "producer/test_slow_readers.py": "process",
    "producer/test_server_survives_nonsense.py": "simulation",
    "session/test_row_rules.py": "simulation",
    "spark": "spark",
    "tables": "spark",
    "batches": "spark",
    "tables/test_table_histories.py": "simulation",
    "batches/test_collection_simulation.py": "simulation",
    "batches/test_consumer_cache.py": "process",
    "batches/test_simulation.py": "simulation",
    "store/test_store_faults.py": "process",
    "store/test_store_killed.py": "process",
    "store/test_store_model.py": "simulation",
    "test_architecture.py": "process",
    "test_attack_tool.py": "process",
    "test_dlt_source.py": "process",
    "test_docs.py": "process",  # a package of dlt asks the machine for its kind
    "test_followed_pages.py": "spark",
    "test_exported_members.py": "process",
    "test_find_java.py": "process",
    "test_packaging.py": "process",
    "test_readme.py": "spark",
    "testing/test_advertised_address.py": "process",
    "testing/test_memory_producer.py": "simulation",
    "testing/test_pytest_plugin.py": "process",
    "worlds/test_cluster_worlds.py": "simulation",
    "worlds/test_planted_faults.py": "process",
    "worlds/test_world_processes.py": "process",
    "worlds/test_worlds.py": "simulation",
    "wire/test_any_bytes.py": "simulation",
    "wire/test_columns_any_traffic.py": "process",
    "wire/test_columns_choice.py": "process",
    "wire/test_columns_select.py": "simulation",
    "wire/test_tshark_agrees.py": "process",
}

#: Directories whose tests need Spark if they use the fixture of that name; the others are units.
_MAY_USE_SPARK = ("batches/", "spark/", "tables/")

#: In the lane spark without the fixture of that name: their tests start a Spark, or processes, of
#: their own.
_OWN_SPARK = {
    "tables/test_lost_answers.py",
    "tables/test_object_stores.py",
    "tables/test_telemetry.py",
    "tables/test_watchable.py",
    "spark/test_clusters.py",
    "spark/test_connect.py",
    "spark/test_local_cluster.py",
    "spark/test_quiet_daemon.py",
    "spark/test_spark_session.py",
}

#: Groups of more than a file, longest first; by file or directory, the longest that fits counts.
#: Each has one Spark at a time, and the second shares it among all its tests.
_GROUP_OF = {
    "cluster/test_mirror_chaos.py": "spark processes",
    "spark/test_local_cluster.py": "spark processes",
    "spark/test_clusters.py": "spark processes",
    "spark/test_connect.py": "spark processes",
    "cli/test_table_commands.py": "spark processes",
    "tables/test_watchable.py": "spark processes",
    "batches": "spark",
    "spark": "spark",
    "tables": "spark",
}

#: Files with long tests that share nothing: each test is a group.
_SPLIT = {"test_followed_pages.py", "test_readme.py", "worlds/test_worlds.py"}


def _longest(table: dict[str, str], path: str) -> str | None:
    places = [path, *map(str, Path(path).parents)]
    return next((table[place] for place in (*places, "") if place in table), None)


def _place(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).as_posix()


def lane_of(item: pytest.Item) -> str:
    path = _place(item)
    lane = _longest(_LANE_OF, path)
    assert lane is not None
    if lane == "spark" and path.startswith(_MAY_USE_SPARK) and path not in _OWN_SPARK:
        return "spark" if "spark" in getattr(item, "fixturenames", ()) else "unit"
    return lane


def group_of(item: pytest.Item) -> str:
    """What a test shares its process with: a group of several files, its file, or nothing."""
    path = _place(item)
    if path in _SPLIT:
        return f"{path} {item.name}"
    alone = lane_of(item) in _ONE_PROCESS
    return (None if alone else _longest(_GROUP_OF, path)) or path


def _rank(item: pytest.Item) -> tuple[int, int]:
    """How early a test is handed to a process."""
    long = list(dict.fromkeys(_GROUP_OF.values()))
    group = group_of(item)
    return long.index(group) if group in long else len(long), -list(LANES).index(lane_of(item))


def tier_of(item: pytest.Item) -> str:
    """Which of the three runs has a test: ``gate``, ``slow`` or ``release``."""
    if item.get_closest_marker("release"):
        return "release"
    if item.get_closest_marker("slow"):
        return "slow"
    return "gate" if lane_of(item) in _ONE_PROCESS or item.get_closest_marker("story") else "slow"


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers = parser.getgroup("upriver's own tests")
    tiers.addoption("--slow", action="store_true", help="run what the gate leaves out")
    tiers.addoption("--release", action="store_true", help="run what only a release has to pass")


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "story: of the gate, although it starts processes, Spark or a browser",
        "slow: not of the gate, although it starts nothing",
        "release: takes many minutes, runs before a release",
    ):
        config.addinivalue_line("markers", marker)
    for lane, meaning in LANES.items():
        config.addinivalue_line("markers", f"{lane}: {meaning}")


def _wanted_tiers(config: pytest.Config) -> set[str]:
    if config.getoption("--release"):
        return {"release"}
    if config.getoption("--slow"):
        return {"slow"}
    if not _names_none(config):
        return {"gate", "slow", "release"}
    return {"gate", "slow"} if config.getoption("markexpr") else {"gate"}


def _names_none(config: pytest.Config) -> bool:
    # xdist's workers are given the paths of the configuration as if a user had named them
    return [Path(one) for one in config.args] in ([TESTS], [Path(TESTS.name)])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which no test would run are not imported: that takes as long as many tests."""
    if not collection_path.name.startswith("test_") or not collection_path.is_relative_to(TESTS):
        return None
    path = collection_path.relative_to(TESTS).as_posix()
    lane = _longest(_LANE_OF, path)
    if lane == "spark" and path.startswith(_MAY_USE_SPARK) and path not in _OWN_SPARK:
        return None  # its tests are in two lanes
    wanted = config.getoption("markexpr")
    if wanted in LANES:
        return lane != wanted or None
    if _wanted_tiers(config) != {"gate"} or lane in _ONE_PROCESS:
        return None
    return "mark.story" not in collection_path.read_text() or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(lane_of(item))
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    tiers = _wanted_tiers(config)
    others = [item for item in items if tier_of(item) not in tiers]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if tier_of(item) in tiers]
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Groups that pytest-xdist does not see would start what they share several times."""
    grouped = session.config.getoption("loadgroup", False)
    if grouped and session.items and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("pytest-xdist does not group the tests of this version of pytest")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """More than cores, because tests wait too, and those with processes longer than others.

    More than eight find too few long groups.
    """
    return min(8, (2 if config.getoption("--slow") else 1) + (os.cpu_count() or 1))


# ---- a lane is what it says ------------------------------------------------------------------

_running: pytest.Item | None = None


def _forbidden_in_one_process(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        if _running is not None:
            raise AssertionError(
                f"{_running.nodeid} is in a lane of one process but starts another by "
                f"{function.__qualname__}: name its file in tests/lanes.py"
            )
        return function(*arguments, **named)

    return checked


# No audit hook: with one, each start of a thread under coverage may let other threads run while
# Python 3.11 installs the trace function, and then the next start of a thread fails.
for _owner, _name in (
    *((subprocess.Popen, "__init__"), (os, "fork"), (os, "posix_spawn")),
    *((os, "execv"), (os, "execve")),
):
    setattr(_owner, _name, _forbidden_in_one_process(getattr(_owner, _name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    global _running
    _running = item if lane_of(item) in _ONE_PROCESS else None
    try:
        return (yield)
    finally:
        _running = None
