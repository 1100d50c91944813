"""Who may import whom: the rooms of the design, walked import by import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "upriver"

#: What a room may reach for directly; it may then also reach what those may.
DIRECT: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors"},
    "wire": {"model"},
    "session": {"wire"},
    "store": {"wire", "model"},
    "producer": {"store", "session"},
    "consumer": {"session"},
    "cluster": {"producer", "consumer"},
    "spark": {"consumer"},
    "dashboard": {"model"},
    "testing": {"cluster", "producer", "consumer"},
    "cli": {"dashboard", "spark", "cluster", "producer", "consumer", "testing"},
    # the package itself: its version and the root of the errors
    "__init__": {"errors"},
    "__main__": {"cli"},
}

#: Rooms without I/O, clocks, threads or logging.
PURE = {"wire", "session", "model", "errors"}
IMPURE = {
    "asyncio",
    "concurrent",
    "logging",
    "multiprocessing",
    "pyspark",
    "queue",
    "selectors",
    "signal",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "threading",
    "time",
}


def reachable(room: str) -> set[str]:
    found = set(DIRECT[room])
    for other in DIRECT[room]:
        found |= reachable(other)
    return found


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_by(path: Path, source: str | None = None) -> set[str]:
    """Every module that a file imports, anywhere in it, with its full name."""
    package = ("upriver", *path.relative_to(PACKAGE).parent.parts)
    names = set()
    for node in ast.walk(ast.parse(path.read_text() if source is None else source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{stem}.{alias.name}" for alias in node.names}
    return names


def rooms_imported_by(path: Path, source: str | None = None) -> set[str]:
    parts = [name.split(".") for name in imported_by(path, source)]
    rooms = {name[1] for name in parts if name[0] == "upriver" and len(name) > 1}
    return {room for room in rooms if room in DIRECT}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    room = room_of(path)
    assert room in DIRECT, f"{room} is no room of the design"
    allowed = reachable(room) | {room}
    assert rooms_imported_by(path) <= allowed


@pytest.mark.parametrize(
    "path", [p for p in modules() if room_of(p) in PURE], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_rooms_without_io_stay_without_it(path: Path) -> None:
    outside = {name.split(".")[0] for name in imported_by(path)}
    assert not outside & IMPURE


def test_the_walk_sees_imports_of_every_shape() -> None:
    module = PACKAGE / "wire" / "dialects" / "example.py"
    source = (
        "import socket\nimport upriver.store.engine\nfrom ...producer import server\n"
        "from ... import consumer\ndef f():\n    from upriver.spark import source\n"
    )
    assert rooms_imported_by(module, source) == {"store", "producer", "consumer", "spark"}
    assert "socket" in imported_by(module, source)


def test_the_design_has_no_circles() -> None:
    for room in DIRECT:
        assert room not in reachable(room)
    assert "producer" not in reachable("spark")


@pytest.mark.parametrize("name", ["upriver", "upriver.wire", "upriver.wire.dialects"])
def test_importing_is_cheap(name: str) -> None:
    heavy = {"numpy", "pyarrow", "pyspark", "rocksdict", "rich", "click", "asyncio"}
    code = f"import sys, {name}; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not heavy & set(output.stdout.split())


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_is_and_what_it_offers(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    offers = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "__all__"
    ]
    defined = {
        name
        for node in ast.walk(tree)
        for name in (
            [node.name]
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            else [node.id]
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    for names in offers:
        assert set(names) <= defined
