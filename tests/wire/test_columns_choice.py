"""Which implementation a process uses, and what happens where the one asked for is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest
from columns_reference import CHANGES, C, needs_c

from upriver.wire.columns.result import FIXED

pytestmark = pytest.mark.story

_REPORT = "import upriver.wire.columns as columns; print(columns.__impl__)"
_WITHOUT = "import sys; sys.modules['upriver.wire.columns._speedups'] = None; "
_STALE = (
    "import sys, types; "
    "stale = types.SimpleNamespace(LIMITS=(1, 2, 3), measure=None, fill=None, patch_opaque=None, "
    "select=None); "
    "sys.modules['upriver.wire.columns._speedups'] = stale; "
)


def run(code: str, wanted: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "UPRIVER_COLUMNS"}
    if wanted is not None:
        environment["UPRIVER_COLUMNS"] = wanted
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("code", "wanted", "used"),
    [
        pytest.param(_REPORT, "numpy", "numpy", id="numpy by name"),
        pytest.param(_REPORT, "c", "c", id="c by name", marks=needs_c),
        pytest.param(_REPORT, None, "numpy" if C is None else "c", id="the best there is"),
        pytest.param(_WITHOUT + _REPORT, None, "numpy", id="without the accelerator"),
        pytest.param(_STALE + _REPORT, "", "numpy", id="with one of other sources"),
    ],
)
def test_the_implementation_in_use(code: str, wanted: str | None, used: str) -> None:
    done = run(code, wanted)
    assert (done.stdout, done.stderr) == (f"{used}\n", "")


@pytest.mark.parametrize(
    ("code", "wanted", "words"),
    [
        pytest.param(_WITHOUT + _REPORT, "c", ["C compiler", "unset UPRIVER_COLUMNS"], id="none"),
        pytest.param(_STALE + _REPORT, "c", ["built from other sources"], id="stale"),
        pytest.param(_REPORT, "rust", ["'rust'", "'c', 'numpy' or unset"], id="unknown"),
    ],
)
def test_what_cannot_be_had_is_said_loudly(code: str, wanted: str, words: list[str]) -> None:
    done = run(code, wanted)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("upriver.errors.ConfigError: UPRIVER_COLUMNS is")
    assert all(word in last for word in words)


def test_the_wire_room_alone_needs_neither_numpy_nor_arrow() -> None:
    code = "import sys, upriver.wire.dialects; print({'numpy', 'pyarrow'} & set(sys.modules))"
    assert run(code).stdout == "set()\n"


# ---- the accelerator's own guard ---------------------------------------------------------


def _columns(rows: int, key: int, value: int, controls: int) -> list[bytearray]:
    fixed = [bytearray(width * rows) for width in FIXED.values()]
    offsets = 4 * (rows + 1)
    parts = (offsets, key, offsets, value, 12 * controls)
    return [*fixed, *(bytearray(size) for size in parts)]


@needs_c
def test_columns_of_another_size_are_not_filled() -> None:
    from upriver.wire.columns import _speedups

    data = CHANGES["mutation"] + bytes.fromhex("805c") + bytes(22)
    consumed, rows, key, value, controls = _speedups.measure(data, True)
    assert (consumed, rows, key, value, controls) == (len(data), 1, 3, 5, 1)
    _speedups.fill(data, True, *_columns(rows, key, value, controls))
    for sizes in [(0, 3, 5, 1), (2, 3, 5, 1), (1, 2, 5, 1), (1, 4, 5, 1), (1, 3, 4, 1)]:
        with pytest.raises(ValueError, match="measure"):
            _speedups.fill(data, True, *_columns(*sizes))
    for sizes in [(1, 3, 6, 1), (1, 3, 5, 0), (1, 3, 5, 2)]:
        with pytest.raises(ValueError, match="measure"):
            _speedups.fill(data, True, *_columns(*sizes))


@needs_c
def test_columns_that_contradict_each_other_are_not_filled() -> None:
    from upriver.wire.columns import _speedups

    data = CHANGES["mutation"]
    good = _columns(1, 3, 5, 0)
    for index in (*range(len(FIXED)), len(FIXED), len(FIXED) + 2):
        for wrong in (bytearray(), bytearray(len(good[index]) - 1), bytearray(99)):
            columns = [*good]
            columns[index] = wrong
            with pytest.raises(ValueError, match=r"rows|measure"):
                _speedups.fill(data, True, *columns)
    with pytest.raises(TypeError):
        _speedups.fill(data, True, *good[:-1])
    with pytest.raises(TypeError):
        _speedups.fill(data, True, *good[:-1], b"not writable")


@needs_c
def test_columns_come_from_arrows_pool() -> None:
    assert C is not None
    before = pa.total_allocated_bytes()
    decoded = C.decode(CHANGES["mutation"] * 1000, collections=True)
    assert pa.total_allocated_bytes() - before >= decoded.batch.nbytes
    del decoded
    assert pa.total_allocated_bytes() == before
