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
    from .pipelines import changelog, history, mirror
    from .query_metrics import SourceListener
    from .repair_table import repair
    from .table_reader import read_table
    from .verify_table import verify

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
        "changelog": ".pipelines",
        "history": ".pipelines",
        "mirror": ".pipelines",
        "read_table": ".table_reader",
        "repair": ".repair_table",
        "retract": ".functions.retract_stream",
        "verify": ".verify_table",
    },
)


def __getattr__(name: str) -> Any:
    with extra("spark"):
        if name == "SCHEMA":
            from ..batches.options import RowFormat
            from .source.row_types import spark_schema

            return spark_schema(RowFormat())
        return _late(name)
