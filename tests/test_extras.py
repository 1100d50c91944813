"""A package that only some users install, and how its absence is told."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from upriver._extras import EXTRAS, extra
from upriver.errors import MissingExtra, UpriverError

PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())


@pytest.mark.parametrize(("name", "module"), [("server", "rocksdict"), ("cli", "click")])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as failure, extra(name):
        __import__(module)
    error = failure.value
    assert (error.name, error.extra) == (module, name)
    assert str(error) == (
        f"this needs upriver[{name}], and {module} is not installed: pip install 'upriver[{name}]'"
    )


def test_it_is_an_error_of_ours_and_of_the_import() -> None:
    assert issubclass(MissingExtra, UpriverError)
    assert issubclass(MissingExtra, ModuleNotFoundError)  # so pytest.importorskip skips


def test_a_package_inside_a_package_counts_as_the_outer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingExtra, match="pyspark is not installed"), extra("spark"):
        import pyspark.sql  # noqa: F401


def test_what_no_extra_brings_stays_what_it_is() -> None:
    with pytest.raises(ModuleNotFoundError) as failure, extra("server"):
        import a_module_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(failure.value, MissingExtra)


def test_an_extra_inside_another_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra) as failure, extra("spark"), extra("cli"):
        import prometheus_client  # noqa: F401
    assert failure.value.extra == "cli"


def test_the_modules_of_an_extra_are_those_that_the_project_declares() -> None:
    declared = PYPROJECT["project"]["optional-dependencies"]
    brought_by = packages_distributions()
    for name, modules in EXTRAS.items():
        wanted = {re.split("[^A-Za-z0-9_-]", line)[0] for line in declared[name]}
        brought = [{one.replace("_", "-") for one in brought_by[module]} for module in modules]
        assert all(each & wanted for each in brought)  # several packages may share a module
        assert wanted <= set().union(*brought)
