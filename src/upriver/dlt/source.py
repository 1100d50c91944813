"""The dlt source: each run brings a table from the positions of the last run to those of now.

Positions are in the state of the dlt resource, which dlt commits in the load package of the rows
they belong to: a run that is killed is loaded to its end by the next one, or repeated. Planning and
reading are those of Spark's source with ``onRollback=restate``, without Spark: after a rollback the
whole vbucket is read again, and what the table has of it besides is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .._extras import extra
from ..batches.admission import Limits
from ..batches.collection_events import CollectionEnd, CollectionLog, Name, ended_rows
from ..batches.offset_planning import after_reading, nowhere
from ..batches.offset_ranges import ReadStep, steps_between
from ..batches.offsets import Offset
from ..batches.options import ReadOptions
from ..batches.stream_driver import Driver
from ..batches.task_reader import StepsRead, read_steps
from ..errors import ConfigError
from ..settings.option_types import SourceOptions
from ..settings.setting import camel, text_of
from .destination_rows import STRATEGY, DestinationRows
from .rows import DOCUMENT, Leftovers, SeenRows, TableRows

with extra("dlt"):
    import dlt
    from dlt.extract import DltSource

_ANEW: Final = "To load the table anew: pipeline.run(..., refresh='drop_resources')"

#: How often a run plans what it could not read at first; the next run reads the rest.
_MOST_PLANS: Final = 5


def dcp_source(
    source: str,
    *,
    table: str = "documents",
    key_format: Literal["binary", "string"] = "string",
    **options: Unpack[SourceOptions],
) -> DltSource:
    """A dlt source with one resource: a table that each run makes equal to a bucket's documents.

    ``source`` is ``couchbase://HOST/BUCKET``, and ``options`` are those of the format ``dcp``.
    Values are strings unless ``value_format`` is ``binary``. The destination must support merging.
    """
    if key_format not in ("binary", "string"):
        raise ConfigError(f"key_format: {key_format!r} is wrong; expected: binary, string")
    read = _read_options(source, options)
    resource = dlt.resource(
        lambda: _documents(read, table, binary_keys=key_format == "binary"),
        name=table,
        table_name=table,
        write_disposition={"disposition": "merge", "strategy": STRATEGY},
        primary_key=DOCUMENT,
        columns={"deleted": {"hard_delete": True}, "seqno": {"dedup_sort": "desc"}},
    )
    return dlt.source(lambda: resource, name="dcp")()


def _read_options(source: str, options: SourceOptions) -> ReadOptions:
    texts = {"connectionString": source, "valueFormat": "string"}
    for name, value in options.items():
        if name not in SourceOptions.__annotations__:
            known = ", ".join(SourceOptions.__annotations__)
            raise ConfigError(f"there is no option {name!r} of the dlt source; there are {known}")
        texts[camel(name)] = text_of(value)
    if options.get("no_value"):
        texts.pop("valueFormat")
    # what was purged is restated like what was lost, so nothing is missing in the table
    return ReadOptions.parse({**texts, "onRollback": "restate", "failOnDataLoss": "false"})


def _documents(options: ReadOptions, table: str, *, binary_keys: bool) -> Iterator[pa.Table]:
    """The rows of one run; at its end, where the next one begins."""
    state = dlt.current.resource_state()
    _require_same_selection(state, options)
    shape = TableRows(options.rows, binary_keys=binary_keys)
    run = _Run(DestinationRows(dlt.current.pipeline(), table, shape.places), shape)
    run.collections = {
        int(number): (scope, collection)
        for number, (scope, collection) in state.get("collections", {}).items()
    }
    with closing(Driver(options)) as driver:
        previous = _previous(state, driver)
        for _ in range(_MOST_PLANS):
            start = previous or driver.first_offset()
            planned = driver.next_offset(start, Limits(), can_restore=nowhere)
            if planned is previous:
                return
            steps = steps_between(start, planned)
            # without a state the table should be empty; if it is not, its state was lost
            restated = {step.vbucket for step in steps if step.rolls_back} if previous else None
            read = StepsRead()
            yield from run.rows(driver.reading(options), steps, restated, read)
            planned = after_reading(planned, read.snapshot_ends)
            state["offset"] = planned.to_dict()
            state["collections"] = {str(one): list(name) for one, name in run.collections.items()}
            # a plan knows of some rollbacks only after a step was refused; rows of two branches
            # of a vbucket must not be in one load, because their seqnos cannot be compared
            again = frozenset(read.skipped - run.vbuckets)
            if not again:
                return
            previous, options = planned, replace(options, vbuckets=again)
            driver.narrow(options)


@dataclass(slots=True)
class _Run:
    """Reads the steps of a run and finds out what else is to be deleted."""

    loaded: DestinationRows
    shape: TableRows
    #: Names by id, of all collections that the table has rows of.
    collections: dict[int, Name] = field(default_factory=dict)
    #: The vbuckets that the run has had rows of.
    vbuckets: set[int] = field(default_factory=set)

    def rows(
        self,
        options: ReadOptions,
        steps: Sequence[ReadStep],
        restated: set[int] | None,
        read: StepsRead,
    ) -> Iterator[pa.Table]:
        """The rows of some steps; ``restated`` are read from the beginning, all if it is None.

        ``read`` notes what becomes of the steps.
        """
        leftovers = Leftovers(self.loaded.of_vbuckets(restated))
        log = CollectionLog(self.collections)
        with SeenRows(self.shape.places) as seen:
            for batch in read_steps(options, steps, read, log):
                rows = self.shape.of_changes(batch)
                self.vbuckets.update(np.unique(rows.column("vbucket").to_numpy()).tolist())
                leftovers.came(rows)
                seen.add(rows)
                yield rows
            gone = [leftovers.left(self.shape.places, read.skipped)]
            names = {(end.scope, end.collection) for end in log.ends_of_known}
            gone += (_ended(rows, log.ends_of_known) for rows in self.loaded.of_collections(names))
            if log.dropped:
                gone += (_ended(rows, log.ends) for rows in seen)
        yield from (self.shape.deletes(rows) for rows in gone if rows.num_rows)
        self.collections = {**self.collections, **log.met}


def _previous(state: dict[str, Any], driver: Driver) -> Offset | None:
    try:
        return driver.offset_of(state.get("offset", {}))
    except ConfigError as problem:
        raise ConfigError(
            f"the positions in dlt's state cannot be used: {problem}. {_ANEW}"
        ) from None


def _ended(rows: pa.Table, ends: list[CollectionEnd]) -> pa.Table:
    """The rows of collections that were dropped, flushed or created anew since."""
    scopes: Any = rows.column("scope")
    unknown: Any = pc.equal(scopes, pa.scalar(""))
    index = rows.schema.get_field_index("scope")
    named = rows.set_column(
        index, "scope", pc.if_else(unknown, pa.scalar(None, pa.string()), scopes)
    )
    return rows.filter(pa.array(ended_rows(named, ends)))


def _require_same_selection(state: dict[str, Any], options: ReadOptions) -> None:
    chosen = {
        "collections": sorted(options.collections),
        "scope": options.scope,
        "vbuckets": None if options.vbuckets is None else sorted(options.vbuckets),
    }
    if state.setdefault("selection", chosen) != chosen:
        raise ConfigError(
            "the table was loaded with other collections, scope or vbuckets; give the same. "
            f"{_ANEW}"
        )
