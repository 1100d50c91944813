"""One Spark for all tests of a process: starting it costs more than any of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as users get it, on two cores, tuned for a short life."""
    sessions = importlib.import_module("upriver.spark.session")
    home: Path = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "MASTER"):
            patch.delenv(name, raising=False)
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        session = sessions.session(
            "tests",
            master="local[2]",
            config={
                "spark.driver.memory": "1g",
                "spark.sql.warehouse.dir": str(home / "warehouse"),
                "spark.sql.session.timeZone": "UTC",
                "spark.log.level": "ERROR",
                "spark.sql.python.filterPushdown.enabled": "true",
            },
        )
        yield session
        session.stop()
