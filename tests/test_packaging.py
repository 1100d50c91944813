"""What a user installs: wheels with and without the accelerator, and the door that they open."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from importlib.metadata import PathDistribution, distribution
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import Path as ZipPath
from zipfile import ZipFile

import click
import pytest
from packaging.requirements import Requirement

import upriver
from upriver._extras import EXTRAS
from upriver.cli.main import cli
from upriver.testing import TemporaryProducer

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = upriver.__version__
#: What a build reads. The rest of a checkout is no part of a wheel.
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
#: Seconds after which a process is taken for stuck; never reached when all is well.
PATIENCE = 600.0


def run(*words: str | Path, where: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process that has ended, without what the tests' own environment says about building."""
    ours = {name: text for name, text in os.environ.items() if not name.startswith("UPRIVER_")}
    return subprocess.run(
        list(map(str, words)),
        cwd=where,
        env={**ours, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def pip(*words: str | Path, where: Path, **variables: str) -> None:
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    done = run(*command, *words, "--no-index", "--no-deps", where=where, **variables)
    assert done.returncode == 0, done.stdout + done.stderr


def copied_to(directory: Path) -> Path:
    """The sources as they lie in a checkout, what was compiled in place included."""
    directory.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, directory)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", directory / "src", ignore=ignored)
    return directory


@dataclass(frozen=True, slots=True)
class Installed:
    """A wheel, and a directory in which nothing else is installed."""

    kind: str
    wheel: Path
    place: Path

    def python(self, code: str) -> str:
        return self._printed(sys.executable, "-c", code)

    def upriver(self, *words: str) -> str:
        return self._printed(self.place / "bin" / "upriver", *words)

    def bash(self, script: str) -> str:
        path = f"{self.place / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return self._printed("bash", "-c", script, PATH=path)

    def _printed(self, *words: str | Path, **more: str) -> str:
        done = run(
            *words, where=self.place.parent, PYTHONPATH=str(self.place), COLUMNS="80", **more
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def installed(kind: str, directory: Path) -> Installed:
    source = copied_to(directory / "source")
    pip("wheel", "--no-build-isolation", source, where=directory, UPRIVER_BUILD=kind)
    [wheel] = directory.glob("*.whl")
    pip("install", "--target", directory / "installed", wheel, where=directory)
    return Installed(kind, wheel, directory / "installed")


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed("pure", tmp_path_factory.mktemp("pure"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    if find_spec("upriver.wire.columns._speedups") is None:
        pytest.skip("there was no C compiler when upriver was installed here")
    return installed("c", tmp_path_factory.mktemp("compiled"))


@pytest.fixture(params=["pure", "compiled"])
def package(request: pytest.FixtureRequest) -> Installed:
    chosen: Installed = request.getfixturevalue(request.param)
    return chosen


# ---- what is in a wheel ------------------------------------------------------------------


def test_a_wheel_has_the_package_and_nothing_else(package: Installed) -> None:
    with ZipFile(package.wheel) as wheel:
        names = {Path(name) for name in wheel.namelist()}
    metadata = f"upriver-{VERSION}.dist-info"
    wanted = {
        path.relative_to(ROOT / "src")
        for path in (ROOT / "src").rglob("*")
        if path.suffix in (".py", ".pyi", ".typed", ".json", ".yml", ".html", ".css", ".js", ".svg")
    }
    compiled = {name for name in names if name.suffix == ".so"}
    assert {name for name in names if name.parts[0] != metadata} == wanted | compiled
    assert Path(metadata, "licenses", "LICENSE") in names
    assert {Path("pyspark_dcp/__init__.py"), Path("upriver/py.typed")} <= names


def test_a_pure_wheel_fits_every_machine_and_has_nothing_compiled(pure: Installed) -> None:
    assert pure.wheel.name == f"upriver-{VERSION}-py3-none-any.whl"
    with ZipFile(pure.wheel) as wheel:
        assert not any(name.endswith(".so") for name in wheel.namelist())


def test_a_compiled_wheel_fits_every_later_python(compiled: Installed) -> None:
    assert compiled.wheel.name.startswith(f"upriver-{VERSION}-cp311-abi3-")
    with ZipFile(compiled.wheel) as wheel:
        assert "upriver/wire/columns/_speedups.abi3.so" in wheel.namelist()


def test_the_accelerator_is_used_where_it_is_installed(package: Installed) -> None:
    printed = package.python("from upriver.wire import columns; print(columns.__impl__)")
    assert printed.strip() == {"pure": "numpy", "c": "c"}[package.kind]


def test_the_version_is_that_of_the_project(package: Installed) -> None:
    file, version = package.python(
        "import upriver; print(upriver.__file__, upriver.__version__)"
    ).split()
    assert Path(file).is_relative_to(package.place)
    assert version == VERSION
    assert package.upriver("--version") == f"upriver, version {version}\n"


def test_importing_it_loads_nothing_that_it_depends_on(pure: Installed) -> None:
    loaded = set(pure.python("import sys, upriver; print(*sys.modules)").split())
    names = [re.split("[^A-Za-z0-9_-]", needed)[0] for needed in PROJECT["dependencies"]]
    assert names == ["cramjam", "numpy", "pyarrow"]
    assert not loaded & {*names, *chain.from_iterable(EXTRAS.values())}


def test_the_dashboard_finds_its_files(pure: Installed) -> None:
    printed = pure.python(
        "import json\n"
        "from importlib.resources import files\n"
        "room = files('upriver.dashboard')\n"
        "json.loads(room.joinpath('grafana.json').read_text())\n"
        "print(json.dumps([one.name for one in room.joinpath('page').iterdir()]))\n"
    )
    source = ROOT / "src" / "upriver" / "dashboard" / "page"
    assert sorted(json.loads(printed)) == sorted(path.name for path in source.iterdir())


def test_pytest_finds_the_plugin(pure: Installed) -> None:
    [metadata] = pure.place.glob("upriver-*.dist-info")
    [plugin] = PathDistribution(metadata).entry_points.select(group="pytest11")
    assert (plugin.name, plugin.value) == ("upriver", "upriver.testing.pytest_plugin")
    assert pure.python(f"import {plugin.value} as plugin; print(plugin.__file__)").startswith(
        str(pure.place)
    )


# ---- what is installed for a role --------------------------------------------------------


def needed_by(wheel: Path, *extras: str) -> set[str]:
    """The distributions that pip would install beside a wheel, from what they all declare."""
    [metadata] = {path for path in ZipPath(wheel).iterdir() if path.name.endswith(".dist-info")}
    waiting = [(line, extras) for line in PathDistribution(metadata).requires or ()]
    found: set[str] = set()
    while waiting:
        line, wanted = waiting.pop()
        needed = Requirement(line)
        marker = needed.marker
        if marker and not any(marker.evaluate({"extra": one}) for one in ("", *wanted)):
            continue
        if needed.name not in found:
            found.add(needed.name)
            inner = distribution(needed.name).requires or ()
            waiting += [(line, tuple(needed.extras)) for line in inner]
    return found


class Environment:
    """A virtual environment of its own with the wheel and what some extras bring."""

    def __init__(self, wheel: Path, directory: Path, *extras: str) -> None:
        venv.create(directory, symlinks=True)
        self._directory = directory
        [packages] = directory.glob("lib/python*/site-packages")
        pip("--python", directory / "bin" / "python", "install", wheel, where=directory)
        for name in needed_by(wheel, *extras):  # as installed here, since nothing is downloaded
            installed_here = distribution(name)
            tops = {file.parts[0] for file in installed_here.files or ()}
            for top in tops - {"..", "__pycache__"}:
                if not (packages / top).exists():
                    (packages / top).symlink_to(str(installed_here.locate_file(top)))

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = self._directory / "bin" / program
        return run(command, *words, where=self._directory, PYTHONPATH="", COLUMNS="200")

    def failure(self, code: str) -> str:
        """The last line of what a program that fails prints."""
        done = self.run("python", "-c", code)
        assert done.returncode != 0
        return done.stderr.splitlines()[-1]


def missing(extra: str, module: str) -> str:
    return (
        f"this needs upriver[{extra}], and {module} is not installed: "
        f"pip install 'upriver[{extra}]'"
    )


READ_ALL = """
import sys
from upriver.consumer import Consumer
with Consumer(sys.argv[1], end="now") as consumer:
    print(sorted(change.key for change in consumer))
from upriver.testing import ChaosProxy
with ChaosProxy():
    pass
"""


def test_the_package_alone_is_the_consumer_and_names_every_extra(
    pure: Installed, tmp_path: Path
) -> None:
    alone = Environment(pure.wheel, tmp_path / "alone")
    with TemporaryProducer(vbuckets=2) as producer:
        producer.write(b"k", b"{}")
        done = alone.run("python", "-c", READ_ALL, producer.source)
    assert (done.stdout, done.stderr) == ("[b'k']\n", "")
    error = "upriver.errors.MissingExtra: "
    server, spark = missing("server", "rocksdict"), missing("spark", "pyspark")
    assert alone.failure("from upriver.testing import TemporaryProducer") == error + server
    assert alone.failure("import upriver.store") == error + server
    assert alone.failure("import upriver.spark as s; s.session()") == error + spark
    assert alone.failure("from upriver.spark import SCHEMA") == error + spark
    command = alone.run("upriver", "--help")
    assert (command.returncode, command.stdout) == (1, "")
    assert command.stderr == f"error: {missing('cli', 'click')}\n"


def test_the_command_line_reads_without_the_server_and_says_what_serving_needs(
    pure: Installed, tmp_path: Path
) -> None:
    commands = Environment(pure.wheel, tmp_path / "commands", "cli")
    with TemporaryProducer(vbuckets=2) as producer:
        producer.write(b"order:1", b"{}")
        done = commands.run("upriver", "tail", producer.source, "--to", "now")
    assert done.returncode == 0, done.stderr
    assert "order:1" in done.stdout
    refused = commands.run("upriver", "serve", "--data", str(tmp_path / "bucket"))
    assert refused.returncode == 1
    assert refused.stderr == f"error: {missing('server', 'rocksdict')}\n"


def test_the_server_needs_no_command_line(pure: Installed, tmp_path: Path) -> None:
    server = Environment(pure.wheel, tmp_path / "server", "server")
    done = server.run(
        "python",
        "-c",
        "from upriver.testing import TemporaryProducer\n"
        "with TemporaryProducer(vbuckets=2) as producer:\n"
        "    print(producer.write(b'k', b'{}').seqno)\n",
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


# ---- how the kind is chosen --------------------------------------------------------------


def compile_in(directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Builds the accelerator alone, into the directory."""
    source = copied_to(directory / "source")
    command = (sys.executable, "setup.py", "--quiet", "build_ext")
    return run(*command, "--build-lib", directory / "built", where=source, **variables)


def test_without_a_compiler_there_is_no_accelerator_and_no_error(tmp_path: Path) -> None:
    done = compile_in(tmp_path, CC="false")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("built/**/*.so"))


def test_an_accelerator_that_must_be_built_and_cannot_is_an_error(tmp_path: Path) -> None:
    done = compile_in(tmp_path, CC="false", UPRIVER_BUILD="c")
    assert done.returncode != 0
    assert "upriver/wire/columns" in done.stderr


def test_a_kind_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = compile_in(tmp_path, UPRIVER_BUILD="fast")
    assert done.returncode != 0
    assert "UPRIVER_BUILD is 'fast'; it can be 'c', 'pure' or unset" in done.stderr


# ---- the command line --------------------------------------------------------------------


def command_names() -> list[str]:
    return cli.list_commands(click.Context(cli))


@pytest.mark.parametrize("name", command_names())
def test_a_command_that_is_listed_can_be_loaded(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name


def test_the_list_of_commands_has_a_line_for_each_and_loads_none(pure: Installed) -> None:
    *shown, loaded = pure.python(
        "import sys\n"
        "from upriver.cli.main import cli\n"
        "cli(['--help'], prog_name='upriver', standalone_mode=False)\n"
        "print(*sys.modules)\n"
    ).splitlines()
    commands = shown[shown.index("Read changes:") :]
    lines = [line.split(maxsplit=1)[0] for line in commands if line.startswith("  ")]
    assert lines == command_names()
    ours = {name for name in loaded.split() if name.startswith("upriver")}
    cli_alone = {
        *("upriver.cli", "upriver.cli.common_options", "upriver.cli.main"),
        *("upriver.cli.pending_signals", "upriver.cli.suggestions", "upriver.logs"),
    }
    assert ours == {"upriver", "upriver._extras", "upriver._lazy", "upriver.errors"} | cli_alone


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("upriver", ""), set(command_names())),
        (("upriver", "ch"), {"check", "checkpoint", "changelog"}),
        (("upriver", "--v"), {"--version"}),
        (("upriver", "tail", "--vb"), {"--vbuckets"}),
        (("upriver", "tail", "--on-rollback", ""), {"rewind", "fail", "ignore"}),
        (("upriver", "checkpoint", "re"), {"rewind"}),
    ],
    # sets come in another order in every process; workers must agree on the names
    ids=lambda value: " ".join(value if isinstance(value, tuple) else sorted(value)),
)
def test_bash_completes_commands_options_and_choices(
    pure: Installed, words: tuple[str, ...], wanted: set[str]
) -> None:
    typed = " ".join(f"'{word}'" for word in words)
    printed = pure.bash(
        'eval "$(_UPRIVER_COMPLETE=bash_source upriver)"\n'
        "[[ $(complete -p upriver) =~ '-F '([^ ]+) ]]\n"
        f"COMP_WORDS=({typed}) COMP_CWORD={len(words) - 1}\n"
        '"${BASH_REMATCH[1]}" upriver\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    assert set(printed.split()) == wanted
