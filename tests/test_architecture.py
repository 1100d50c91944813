"""Who may import whom: the rooms of the design, walked import by import."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from upriver.testing import TemporaryProducer

pytestmark = pytest.mark.story

PACKAGE = Path(__file__).parent.parent / "src" / "upriver"

#: What a room may reach for directly; it may then also reach what those may.
DIRECT: dict[str, set[str]] = {
    "escaping": set(),
    "errors": {"escaping"},
    "_extras": {"errors"},
    "_lazy": set(),
    "_entropy": set(),
    "logs": set(),
    "telemetry": {"_extras"},
    "_daemon": set(),
    "_files": set(),
    "_hosts": set(),
    "_line_limit": set(),
    "_http_requests": set(),
    "_unclosed": set(),
    "model": {"errors"},
    "wire": {"model"},
    "session": {"wire"},
    "store": {"wire", "model", "_extras", "_entropy", "_files"},
    "producer": {"store", "session", "_hosts", "_http_requests"},
    "consumer": {"session", "files", "_entropy", "_daemon", "_files", "_lazy", "_unclosed"},
    "cluster": {"producer", "consumer", "logs"},
    "settings": {"consumer"},
    "files": {"_extras", "_line_limit"},
    "batches": {"settings"},
    "tables": {"batches", "files", "telemetry"},
    "spark": {"tables", "_lazy"},
    "dlt": {"batches"},
    "dashboard": {"model", "_extras", "_hosts", "_http_requests"},
    "testing": {"cluster", "producer", "consumer", "_lazy"},
    "cli": {"logs", "dashboard", "spark", "cluster", "producer", "consumer", "testing"},
    # the package itself: its version, the root of the errors, and what every user meets
    "__init__": {"errors", "model", "_lazy"},
    "__main__": {"cli"},
}

#: Rooms without I/O, clocks, threads or logging.
PURE = {"wire", "session", "model", "errors", "escaping"}
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


def test_a_room_imports_only_what_it_may() -> None:
    assert {room_of(path) for path in modules()} <= DIRECT.keys()
    forbidden = {
        str(path.relative_to(PACKAGE)): rooms
        for path in modules()
        if (rooms := rooms_imported_by(path) - reachable(room_of(path)) - {room_of(path)})
    }
    assert not forbidden


def test_connections_know_nothing_of_what_is_written_over_them() -> None:
    for path in (PACKAGE / "consumer" / "transport").glob("*.py"):
        names = imported_by(path)
        assert not {name for name in names if name.startswith("upriver.consumer.writing")}, path


def test_rooms_without_io_stay_without_it() -> None:
    impure = {
        str(path.relative_to(PACKAGE)): outside
        for path in modules()
        if room_of(path) in PURE
        and (outside := {name.split(".")[0] for name in imported_by(path)} & IMPURE)
    }
    assert not impure


def test_batches_and_tables_do_not_know_spark() -> None:
    for path in modules():
        if room_of(path) in ("batches", "tables", "files", "dlt"):
            roots = {name.split(".")[0] for name in imported_by(path)}
            assert not roots & {"pyspark", "py4j"}, path


def test_the_walk_sees_imports_of_every_shape() -> None:
    module = PACKAGE / "wire" / "dialects" / "example.py"
    source = (
        "import socket\nimport upriver.store.rocksdb\nfrom ...producer import server\n"
        "from ... import consumer\ndef f():\n    from upriver.spark import source\n"
    )
    assert rooms_imported_by(module, source) == {"store", "producer", "consumer", "spark"}
    assert "socket" in imported_by(module, source)


def test_the_design_has_no_circles() -> None:
    for room in DIRECT:
        assert room not in reachable(room)
    assert "producer" not in reachable("spark")


@pytest.mark.parametrize(
    "name",
    [
        "upriver",
        "upriver.wire",
        "upriver.wire.dialects",
        "upriver.testing",
        "upriver.testing.pytest_plugin",
    ],
)
def test_importing_is_cheap(name: str) -> None:
    heavy = {"numpy", "pyarrow", "pyspark", "rocksdict", "rich", "click", "asyncio"}
    assert not heavy & imported_with(name)


def test_clients_and_servers_start_without_pandas() -> None:
    """Where it is installed, pyarrow imports it to make an array of a list: half of a start."""
    found = imported_with(
        "upriver.consumer.client, upriver.cluster.node_main, upriver.tables.pipeline_start"
    )
    assert "pyarrow" in found
    assert "pandas" not in found


@pytest.mark.parametrize(
    "words", [("get", "k"), ("set", "k", "2"), ("touch", "k", "9"), ("nodes",), ("collections",)]
)
def test_a_command_that_asks_one_question_starts_without_arrow(words: tuple[str, ...]) -> None:
    """Arrow and numpy are for streams; importing them takes twice as long as such a command."""
    code = (
        "import sys; from upriver.cli.main import cli; "
        "cli(sys.argv[1:], standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    )
    with TemporaryProducer(vbuckets=4) as producer:
        producer.write(b"k", b"1")
        name, *rest = words
        where = ["list", producer.source] if name == "collections" else [producer.source]
        ran = subprocess.run(
            [sys.executable, "-c", code, name, *where, *rest],
            capture_output=True,
            text=True,
            check=True,
        )
    assert not {"numpy", "pyarrow", "pandas"} & set(ran.stderr.split())


@pytest.mark.parametrize("columns", ["c", "numpy"])
def test_changes_are_read_without_pandas(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if columns == "c" and not list((PACKAGE / "wire" / "columns").glob("*.so")):
        pytest.skip("the accelerator was not built here")
    monkeypatch.setenv("UPRIVER_COLUMNS", columns)
    code = (
        "import sys; from upriver.consumer import Consumer; "
        "from upriver.testing import TemporaryProducer\n"
        "with TemporaryProducer(vbuckets=4) as producer:\n"
        "    producer.write(b'k', b'v')\n"
        "    with Consumer(producer.source, end='now') as consumer:\n"
        "        assert [change.key for change in consumer] == [b'k']\n"
        "    with Consumer(producer.source, end='now') as consumer:\n"
        "        assert sum(batch.num_rows for batch in consumer.batches()) == 1\n"
        "print('pandas' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def imported_with(names: str) -> set[str]:
    """The modules that a new interpreter has after it has imported some."""
    code = f"import sys, {names}; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(output.stdout.split())


def offered_and_defined_by(path: Path, tree: ast.Module) -> tuple[set[str], set[str]]:
    """The names in ``__all__``, and every name that a module gives a meaning to."""
    inside = path.parent.iterdir() if path.name == "__init__.py" else ()
    offered = {
        name
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "__all__"
        for listed in getattr(node.value, "elts", ())
        if not isinstance(listed, ast.Starred)  # the list of another module
        for name in [ast.literal_eval(listed)]
    }
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
    return offered, defined | {module.stem for module in inside}


def test_every_module_says_what_it_is_and_offers_only_what_it_has() -> None:
    trees = {path: ast.parse(path.read_text()) for path in modules()}
    assert [path for path, tree in trees.items() if not ast.get_docstring(tree)] == []
    names = {path: offered_and_defined_by(path, tree) for path, tree in trees.items()}
    absent = {path: offered - defined for path, (offered, defined) in names.items()}
    assert {path: missing for path, missing in absent.items() if missing} == {}


@pytest.mark.parametrize(
    "room", sorted({room_of(path) for path in modules()} - {"wire", "__init__", "__main__"})
)
def test_dialects_are_asked_what_they_can_do_and_not_which_they_are(room: str) -> None:
    """Outside of wire a draft is known by its interface, so no check names its class or name."""
    for path in modules():
        if room_of(path) != room:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            assert not names_a_dialect(node), f"{path.name}: {ast.unparse(node)}"


DIALECT_CLASSES = {"Dcp", "Draft000", "Draft001", "Draft002", "MemcachedDialect"}


def names_a_dialect(node: ast.AST) -> bool:
    """Whether a check compares a dialect, its class or its name with another."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
        return any(getattr(x, "id", "") in DIALECT_CLASSES for x in ast.walk(node.args[1]))
    if not isinstance(node, ast.Compare):
        return False
    parts = [part for side in (node.left, *node.comparators) for part in ast.walk(side)]
    names = {getattr(part, "id", getattr(part, "attr", "")) for part in parts}
    named = names & DIALECT_CLASSES or any(
        isinstance(part, ast.Attribute)
        and part.attr == "name"
        and getattr(part.value, "id", getattr(part.value, "attr", "")).endswith("dialect")
        for part in parts
    )
    # "dcp" is the name of Spark's format as well
    drafts = {"000", "001", "002"}
    if any("dialect" in name for name in names):
        drafts.add("dcp")
    return bool(named) or any(getattr(part, "value", None) in drafts for part in parts)


@pytest.mark.parametrize(
    "check",
    [
        "isinstance(dialect, Draft001)",
        "dialect == Draft001(nru=True)",
        "name == Draft001.name",
        "self.dialect.name == other",
        "draft != '002'",
        "self.dialect not in ('auto', 'dcp')",
    ],
)
def test_each_way_to_ask_which_draft_a_dialect_is_would_be_noticed(check: str) -> None:
    assert any(map(names_a_dialect, ast.walk(ast.parse(check))))


def types_of(source: str) -> set[str]:
    """The public classes and aliases of types that a module defines."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if name[0].isupper() and not name.isupper()}


def test_a_name_of_a_type_means_one_thing() -> None:
    homes: dict[str, set[str]] = {}
    for path in modules():
        for name in types_of(path.read_text()):
            homes.setdefault(name, set()).add(str(path.relative_to(PACKAGE)))
    assert not {name: where for name, where in homes.items() if len(where) > 1}


def test_the_walk_sees_types_of_every_shape() -> None:
    source = (
        "class Rows: ...\nclass _Own: ...\nEvent = Rows | int\nStep: TypeAlias = int\n"
        "LIMIT: Final = 3\n_T = TypeVar('_T')\nname = 4\n"
    )
    assert types_of(source) == {"Rows", "Event", "Step"}


def test_the_hops_that_the_documentation_names_exist() -> None:
    page = (PACKAGE.parent.parent / "docs" / "explanation" / "architecture.md").read_text()
    table = page.partition("hop by hop")[2].partition("\n## ")[0]
    hops = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|", table, re.MULTILINE)
    assert len(hops) > 10
    for module, function in hops:
        if module.endswith("c_path") and not list((PACKAGE / "wire" / "columns").glob("*.so")):
            continue  # the accelerator was not built here
        assert callable(attrgetter(function)(importlib.import_module(f"upriver.{module}")))
