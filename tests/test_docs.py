"""What the documentation lists is what there is."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from doc_blocks import DOCS, FOLLOWED, ROOT, blocks_of, name_of
from test_exported_members import COMPLETE, PUBLIC

from upriver.testing import pytest_plugin

pytestmark = pytest.mark.story

PAGES = sorted(DOCS.rglob("*.md"))

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
#: Directories of one machine, which mean nothing on another.
_MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:home|root|work|tmp|usr|var)/")


@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_every_block_of_such_a_page_is_run_or_only_shown(page: Path) -> None:
    """A language that nobody runs would hide a command that does not work."""
    languages = {block.language for block in blocks_of(page.read_text()) if not block.is_file}
    assert languages <= {"sh", "console", "python", "text"}


@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_every_program_of_such_a_page_compiles(page: Path) -> None:
    """Also files for programs that are not installed here, such as a scheduler's."""
    for block in blocks_of(page.read_text(), "python"):
        compile(block.code, f"{page}:{block.line}", "exec")


def test_the_reference_has_every_public_name_under_its_module() -> None:
    pages = ("python-api.md", "python-wire.md")
    text = "".join((DOCS / "reference" / page).read_text() for page in pages)
    shown: dict[str, set[str]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        module, _, content = section.partition("\n")
        shown[module] = set(re.findall(r"^### (\S+)$", content, re.MULTILINE))
    for name in (*PUBLIC, *COMPLETE):
        assert set(importlib.import_module(name).__all__) <= shown[name], name
    for fixture in set(pytest_plugin.__all__) - {"ProducerBehindProxy"}:
        assert f"| `{fixture}` |" in text


def test_the_readme_imports_from_where_the_reference_has_the_names() -> None:
    readme = (ROOT / "README.md").read_text()
    for module, names in re.findall(r"^ *from (upriver[\w.]*) import (.+)$", readme, re.MULTILINE):
        for name in re.split(r", *", names.partition(" as ")[0]):
            assert name in importlib.import_module(module).__all__, f"{module}.{name}"
            assert module in (*PUBLIC, *COMPLETE), module


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(_FENCED.sub("", page.read_text())):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_file(), target
        assert there.is_relative_to(DOCS), f"{target} is not part of the site"
        if anchor:
            assert anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_name_no_directory_of_one_machine(page: Path) -> None:
    assert not _MACHINE_PATH.search(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"tests/[\w/]+\.py", page.read_text())
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    assert [name_of(page) for page in PAGES if name_of(page) not in menu] == []


def anchors(page: Path) -> set[str]:
    """The names that headings get: lower case, words joined by hyphens."""
    text = _FENCED.sub("", page.read_text())
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        for heading in _HEADING.findall(text)
    }
