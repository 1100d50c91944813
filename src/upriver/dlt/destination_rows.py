"""Asks the destination of a dlt pipeline which rows its table has."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from .._extras import extra
from ..batches.collection_events import Name
from ..errors import ConfigError
from .rows import PLACES

with extra("dlt"):
    from dlt.destinations.exceptions import DatabaseUndefinedRelation

if TYPE_CHECKING:
    from dlt import Pipeline

#: The rows that are read at once.
_CHUNK: Final = 50_000
#: How dlt must merge for deletes to be heeded.
STRATEGY: Final = "delete-insert"


class DestinationRows:
    """The rows of one table, with the columns `PLACES` in the schema ``places``."""

    def __init__(self, pipeline: Pipeline, table: str, places: pa.Schema) -> None:
        self._pipeline = pipeline
        self._table = table
        self._places = places
        destination = pipeline.destination
        if destination is None:
            raise ConfigError("the dlt pipeline has no destination: name one in dlt.pipeline(...)")
        if STRATEGY not in (destination.capabilities().supported_merge_strategies or ()):
            raise ConfigError(
                f"the destination {destination.destination_name} cannot merge with the strategy "
                f"{STRATEGY}, so deleted documents would stay; use one that can, such as duckdb"
            )

    def of_vbuckets(self, vbuckets: Collection[int] | None) -> Iterator[pa.Table]:
        """The rows of some vbuckets; None for all."""
        if vbuckets is None:
            return self._rows("")
        if not vbuckets:
            return iter(())
        return self._rows(f"vbucket IN ({', '.join(map(str, sorted(vbuckets)))})")

    def of_collections(self, names: Collection[Name]) -> Iterator[pa.Table]:
        """The rows of collections with these names."""
        if not names:
            return iter(())
        return self._rows("collection", sorted({collection for _, collection in names}))

    def _rows(self, condition: str, texts: Collection[str] = ()) -> Iterator[pa.Table]:
        if self._pipeline.has_pending_data:
            raise ConfigError(
                "the dlt pipeline has load packages that are not loaded yet, and what they change "
                "must be known now: call its load(), and run it again"
            )
        with self._pipeline.dataset().sql_client as client:
            columns = ", ".join(map(client.escape_column_name, PLACES))
            query = f"SELECT {columns} FROM {client.make_qualified_table_name(self._table)}"
            if texts:
                literals = ", ".join(map(client.capabilities.escape_literal, texts))
                condition = f"{client.escape_column_name(condition)} IN ({literals})"
            if condition:
                query += f" WHERE {condition}"
            try:
                with client.execute_query(query) as cursor:
                    for rows in cursor.iter_arrow(chunk_size=_CHUNK):
                        yield rows.cast(self._places)
            except DatabaseUndefinedRelation:
                return  # nothing was loaded yet
