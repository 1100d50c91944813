"""Which Spark is installed, and what that version can do for a Python data source.

Spark 3 has no Python data sources. Spark 4.0 and 4.1 do not give a stream the start of a batch and
how much it may read: `stream_reader_spark40` keeps both itself. The whole table is in
`docs/reference/spark-versions.md`. Importing this module imports no part of Spark but its version.
"""

from __future__ import annotations

from typing import Final

from ..._extras import extra
from ...errors import ConfigError

#: The first and the last version that the tests run with (`make matrix`).
FIRST: Final = (4, 0)
LAST: Final = (4, 3)


def installed() -> tuple[int, int]:
    """The installed version of Spark, as major and minor; MissingExtra if there is none."""
    with extra("spark"):
        from pyspark import __version__
    major, minor = __version__.split(".")[:2]
    return int(major), int(minor)


def require_supported() -> None:
    """Raises ConfigError if the installed Spark is too old; newer ones than `LAST` are tried."""
    version = installed()
    if version < FIRST:
        raise ConfigError(
            f"Spark {version_text(version)} has no Python data sources: Upriver needs Spark "
            f"{version_text(FIRST)} to {version_text(LAST)} (pip install 'upriver[spark]')"
        )


def has_filter_classes() -> bool:
    """Whether Spark can push filters down to a Python data source at all."""
    return installed() >= (4, 1)


def has_admission_control() -> bool:
    """Whether a stream gets the start of a batch and its limit, and Trigger.AvailableNow."""
    return installed() >= (4, 2)


def has_arrow_stream_writer() -> bool:
    """Whether a stream can be written as Arrow batches."""
    return installed() >= (4, 1)


def version_text(version: tuple[int, int]) -> str:
    """The version as users write it."""
    return ".".join(map(str, version))
