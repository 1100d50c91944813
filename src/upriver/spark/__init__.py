"""Spark integration: the data source and sink ``dcp``, tables and pipelines.

It uses the consumer and never the producer. Importing it does not import Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._extras import extra
from .._lazy import lazily
from .functions.fold import fold
from .functions.parse import parse
from .functions.upserts_and_deletes import changes_for
from .session import register, session

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .functions.retract_stream import retract
    from .query_metrics import SourceListener
    from .tables.delta_table_reader import read_table
    from .tables.pipelines import changelog, history, mirror
    from .tables.repair import repair
    from .tables.verify import verify

    #: The schema of the source's rows with default options.
    SCHEMA: StructType

__all__ = [
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
]

# imported late: they need packages that Spark's workers do not
_late = lazily(
    __name__,
    {
        "SourceListener": ".query_metrics",
        "changelog": ".tables.pipelines",
        "history": ".tables.pipelines",
        "mirror": ".tables.pipelines",
        "read_table": ".tables.delta_table_reader",
        "repair": ".tables.repair",
        "retract": ".functions.retract_stream",
        "verify": ".tables.verify",
    },
)


def __getattr__(name: str) -> Any:
    with extra("spark"):
        if name == "SCHEMA":
            from .options import RowFormat
            from .source.row_schema import spark_schema

            return spark_schema(RowFormat())
        return _late(name)
