"""Care for tables by hand: small files become few, and files that nobody needs go.

No row changes. A pipeline may run meanwhile, in this process or another; whoever commits second
notices, and begins again from what the table is then.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pyarrow as pa

from ...errors import ConfigError
from ..executors import ThisProcess
from ..lease import Lease, held_lease
from ..pipeline_start import held_properties
from ..pipeline_tables import PipelineTables
from ..places import TablePlace
from .table_maintenance import TableMaintenance
from .version_retention import Window


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done for a table."""

    path: str
    files_before: int
    files_after: int
    vacuumed: int


def compact(place: TablePlace, *, seconds: float) -> list[Compacted]:
    """Compacts every table there, and removes what only versions older than that need."""
    if held_properties(place) is None:
        raise ConfigError(f"there is no Delta table at {place}")
    with ExitStack() as stack:
        lease = None
        with suppress(ConfigError):  # a pipeline runs: it decides itself which versions are kept
            lease = stack.enter_context(held_lease(place.storage, wait=False))
        tables = PipelineTables.open(place.storage, pa.schema([]), Window(seconds, 2**62))
        if tables is None:
            raise ConfigError(f"there is no table of a pipeline at {place}")
        return _compacted(tables, lease, seconds)


def _compacted(tables: PipelineTables, lease: Lease | None, seconds: float) -> list[Compacted]:
    if lease is None and tables.per_collection:
        raise ConfigError(
            f"a pipeline is running on {tables.root.url}, and compacts its tables by itself"
        )
    tables.own_schemas = {
        name: table.snapshot.arrow_schema() for name, table in tables.data_tables().items()
    }
    before = {name: len(table.files) for name, table in tables.all_tables().items()}
    tables.apply_pending()
    care = TableMaintenance(tables)
    care.compact(ThisProcess(), everything=True)
    # Before a commit says which versions go: the oldest that stays needs a checkpoint to start
    # from, or every commit before it stays too.
    care.checkpoint(every=1)
    if lease is not None:
        care.let_go(lease, seconds)
    gone = care.vacuum()
    after = {name: len(table.files) for name, table in tables.all_tables().items()}
    return [
        Compacted(
            f"{tables.root.url}/{name}" if name else tables.ledger.storage.url,
            before.get(name, 0),
            after.get(name, 0),
            gone.get(name, 0),
        )
        for name in {**after, **gone}  # also of tables that were never made
    ]
