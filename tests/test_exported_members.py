"""What users may import: everything that these packages list, and nothing else."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import upriver
from upriver.settings.all_settings import CHANGELOG, HISTORY, MIRROR, READ, TABLE_READ
from upriver.settings.option_types import (
    ChangelogOptions,
    HistoryOptions,
    MirrorOptions,
    TableOptions,
)
from upriver.settings.setting import Setting, Use, snake
from upriver.tables.pipeline_settings import _NOT_FOR_MIRRORS

PUBLIC = {
    "upriver": {"Op", "UpriverError", "__version__"},
    "upriver.consumer": {
        "SCHEMA",
        "Access",
        "AsyncConsumer",
        "BucketGroupStore",
        "Change",
        "Checkpoint",
        "CheckpointStore",
        "Consumer",
        "ConsumerSettings",
        "DirectoryGroupStore",
        "FileCheckpoint",
        "Flushed",
        "GroupStore",
        "MemoryCheckpoint",
        "Op",
        "Position",
        "ReadingStatus",
        "Revocation",
        "Rollback",
        "RollbackPolicy",
        "RollbackReason",
        "RolledBack",
        "Rows",
        "Source",
        "StateAsked",
        "StreamFinished",
        "StreamOpened",
        "SyncWrite",
        "SystemHappened",
    },
    "upriver.spark": {
        "SCHEMA",
        "SourceListener",
        "changelog",
        "changes_for",
        "fold",
        "history",
        "mirror",
        "parse",
        "read_table",
        "register",
        "repair",
        "retract",
        "session",
        "verify",
    },
    "upriver.dlt": {"dcp_source"},
    "upriver.telemetry": {"batch_done", "batch_failed", "disable", "enable", "enable_export"},
    "upriver.testing": {
        "ChaosCounts",
        "ChaosProxy",
        "Direction",
        "Faults",
        "MemoryLink",
        "MemoryProducer",
        "TemporaryCluster",
        "TemporaryProducer",
    },
    "upriver.wire": {"canonical", "columns", "dialects", "framing", "kv_messages", "messages"},
    "upriver.wire.columns": {
        "SCHEMA",
        "ControlFrame",
        "Decoded",
        "LeftFrame",
        "Part",
        "Selected",
        "Selection",
        "__impl__",
        "decode",
        "patch_opaque",
        "select",
    },
    "upriver.wire.dialects": {
        "Dcp",
        "Dialect",
        "DialectPin",
        "Draft000",
        "Draft001",
        "Draft002",
        "SnapshotStyle",
        "sniff",
    },
}
#: Too many to repeat: every public name that they define is listed.
COMPLETE = (
    "upriver.errors",
    "upriver.model",
    "upriver.wire.canonical",
    "upriver.wire.framing",
    "upriver.wire.kv_messages",
    "upriver.wire.messages",
)


def own_names(module: ModuleType) -> set[str]:
    """Public classes, functions and constants that a module or package defines."""
    names = set()
    for part in pkgutil.iter_modules(getattr(module, "__path__", ())):
        names |= own_names(importlib.import_module(f"{module.__name__}.{part.name}"))
    for node in ast.parse(inspect.getsource(module)).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_package_lists_what_users_may_import(name: str) -> None:
    assert set(importlib.import_module(name).__all__) == PUBLIC[name]


@pytest.mark.parametrize("name", [*PUBLIC, *COMPLETE])
def test_everything_that_is_listed_is_there_once(name: str) -> None:
    listed = importlib.import_module(name).__all__
    assert len(set(listed)) == len(listed)
    imported: dict[str, object] = {}
    exec(f"from {name} import *", imported)  # as users would, so modules are loaded as well
    assert set(listed) <= imported.keys()


@pytest.mark.parametrize("name", COMPLETE)
def test_a_module_lists_all_that_it_defines(name: str) -> None:
    module = importlib.import_module(name)
    assert own_names(module) == set(module.__all__)


def test_what_is_not_there_is_an_attribute_error_that_names_it() -> None:
    for name in ("upriver", "upriver.testing", "upriver.spark"):
        with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
            _ = importlib.import_module(name).nothing


def test_an_op_is_the_same_wherever_it_is_imported_from() -> None:
    from upriver import consumer, model

    assert upriver.Op is consumer.Op is model.Op


def test_a_schema_is_that_of_what_the_clients_give() -> None:
    from upriver.batches.options import RowFormat
    from upriver.batches.row_schema import arrow_schema
    from upriver.wire import columns

    assert importlib.import_module("upriver.consumer").SCHEMA is columns.SCHEMA
    assert importlib.import_module("upriver.spark").SCHEMA.names == arrow_schema(RowFormat()).names


@pytest.mark.parametrize(
    ("typed", "table", "not_taken"),
    [
        (ChangelogOptions, CHANGELOG, {"columns"}),
        (MirrorOptions, MIRROR, {"columns", *_NOT_FOR_MIRRORS}),
        (HistoryOptions, HISTORY, {"columns", *_NOT_FOR_MIRRORS}),
    ],
)
def test_the_typed_options_of_a_pipeline_are_those_of_the_table(
    typed: type, table: tuple[Setting, ...], not_taken: set[str]
) -> None:
    source = [one for one in READ if one.use is not Use.BATCH and one.name != "connectionString"]
    wanted = {one.name for one in (*source, *table)} - not_taken
    assert typed.__annotations__.keys() == {snake(name) for name in wanted}


def test_the_typed_options_of_reading_a_table_are_those_of_the_format() -> None:
    wanted = {one.name for one in TABLE_READ} - {"path"}
    assert TableOptions.__annotations__.keys() == {snake(name) for name in wanted}


def test_a_type_checker_sees_what_is_imported_lazily(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from upriver import Op\n"
        "from upriver.spark import SCHEMA, mirror, read_table\n"
        "from upriver.spark.session import session\n"
        "from upriver.testing import ChaosProxy, TemporaryProducer\n"
        "reveal_type((Op.MUTATION, SCHEMA, ChaosProxy, TemporaryProducer))\n"
        "mirror(session(), source='couchbase://h/b', table='t',\n"
        "    keep_deleted=True, merge_on_read=False)\n"
        "read_table(session(), 't', columns=['key'], version_as_of=7, read_change_feed=True)\n"
        "read_table(session(), 't', version=7)  # type: ignore[call-arg]\n"
        "mirror(session(), source='', table='', keep_deletd=True)  # type: ignore[call-arg]\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", str(program)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Any" not in done.stdout
    assert "StructType" in done.stdout
