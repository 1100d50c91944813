"""The page on the five documents: its rows are whole, its counts right, its tests there and run."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "seeds.md"
#: By age.
DOCUMENTS: Final = ("002", "000", "003", "001", "004")
STATUSES: Final = ("met", "differs", "not met")
_COLUMNS: Final = "| demand | Upriver | shown by | why it differs |"
_TEST: Final = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_COUNTS: Final = re.compile(r"^\| (\w+)" + r" \| (\d+)" * 4 + r" \|$", re.MULTILINE)
_SKIPPING: Final = {"skip", "skipif", "xfail"}


class Row(NamedTuple):
    """One demand of a document."""

    document: str
    heading: str
    demand: str
    upriver: str
    shown_by: str
    reason: str

    @property
    def status(self) -> str:
        return self.upriver.partition(":")[0]

    @property
    def tests(self) -> list[tuple[str, str]]:
        return _TEST.findall(self.shown_by)


def rows() -> Iterator[Row]:
    for section in re.split(r"^## Document ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        heading = ""
        for line in section.splitlines():
            if line.startswith("### "):
                heading = line
            if line.startswith("|") and line != _COLUMNS and not line.startswith("|---"):
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                assert len(cells) == 4, line
                yield Row(section[:3], heading, *cells)


ROWS: Final = list(rows())


@cache
def marks_of_tests(path: str) -> dict[str, set[str]]:
    """The functions of a file, with the marks that each of them has, its file's among them."""
    tree = ast.parse((ROOT / path).read_text())
    of_file = {
        mark
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for mark in _marks(node.value)
    }
    return {
        node.name: of_file.union(*map(_marks, node.decorator_list))
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _marks(node: ast.AST) -> set[str]:
    return {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def test_every_document_has_its_rows_in_the_order_of_age() -> None:
    assert tuple(dict.fromkeys(row.document for row in ROWS)) == DOCUMENTS


def test_every_row_says_what_upriver_does_and_why_that_differs() -> None:
    for row in ROWS:
        assert row.demand, row
        assert row.status in STATUSES, row
        assert row.tests, row
        assert _TEST.sub("", row.shown_by).strip(", ") == "", row
        assert bool(row.reason) is (row.status == "differs"), row
        assert row.status == "met" or row.upriver != row.status, row


def test_no_demand_is_there_twice() -> None:
    found = Counter((row.document, row.heading, row.demand) for row in ROWS)
    assert [demand for demand, times in found.items() if times > 1] == []


@pytest.mark.parametrize("path", sorted({path for row in ROWS for path, _ in row.tests}))
def test_the_tests_that_it_names_are_there_and_run(path: str) -> None:
    there = marks_of_tests(path)
    for row in ROWS:
        for file, name in row.tests:
            if file == path:
                assert name in there, f"{path}::{name}: {row.demand}"
                assert not there[name] & _SKIPPING, f"{path}::{name} may be skipped: {row.demand}"


def test_its_counts_are_those_of_its_rows() -> None:
    counted = {one: Counter(row.status for row in ROWS if row.document == one) for one in DOCUMENTS}
    counted["all"] = sum(counted.values(), Counter())
    expected = [
        (name, statuses.total(), *(statuses[status] for status in STATUSES))
        for name, statuses in counted.items()
    ]
    told = _COUNTS.findall(PAGE.read_text())
    assert [(name, *map(int, numbers)) for name, *numbers in told] == expected
