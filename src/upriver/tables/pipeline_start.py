"""How a pipeline begins: the table is opened or made, and everything must belong together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from .. import _entropy
from ..batches.consumer_cache import close_cached
from ..batches.offset_ranges import SMALL_BATCH
from ..batches.stream_driver import Driver
from ..errors import ConfigError
from ..files.slow_requests import slow_request
from ..settings.setting import text_of
from .chosen_collections import ChosenCollections
from .executors import Executors, ThisProcess
from .format.open_table import OpenTable
from .heartbeat import heartbeat_of
from .lag import LagMeter
from .lease import held_lease
from .merge import change_schema
from .pipeline import BatchLoop, Pipeline
from .pipeline_settings import (
    HASH_KEY,
    INFER,
    MERGE_ON_READ,
    PER_COLLECTION,
    PIPELINE,
    SELECTION,
    SHAPE,
    AskedColumns,
    PipelineSettings,
    identity_properties,
    require_readable,
    require_same,
)
from .pipeline_tables import LEDGER, PipelineTables
from .pipeline_watch import watched
from .places import TablePlace
from .progress_log import ProgressBook
from .rows.ddl import schema_json
from .rows.json_types import DEPTH, require_column_names
from .rows.key_pattern import KeyColumns
from .rows.row_shape import NO_COLUMNS, MirrorShape

#: Seconds that a node has to answer how far the bucket is.
_MEASURED_WITHIN: Final = 2.0
#: Readers of old versions need their files and their part of the log: Upriver alone decides.
_LEFT_TO_US: Final = {
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
}


def start_pipeline(
    executors: Executors | Callable[[], Executors],
    settings: PipelineSettings,
    place: TablePlace,
    *,
    on_step: Callable[[str], None] = lambda step: None,
) -> Pipeline:
    """Checks that table and source belong together, and starts.

    A function that starts the executors is called only if there is more to do than this process
    does itself.
    """
    held = held_properties(place)
    with ExitStack() as stack:
        place.prepare()
        lease = stack.enter_context(held_lease(place.storage))
        planning = Driver(settings.read, patience=1.0)
        stack.callback(planning.close)
        # who measures does not wait long for a node: how far the table is behind is unknown then
        read = replace(
            settings.read, retry_timeout=min(settings.read.retry_timeout, _MEASURED_WITHIN)
        )
        source = planning.identity()
        # where only streams tell how far a bucket is, nobody knows how far the table is behind
        meter = LagMeter(None if planning.reading().mute is not None else Driver(read))
        stack.callback(meter.close)
        identity = identity_properties(settings, source)
        shape = MirrorShape()
        if settings.kind.documents:
            shape = _shape(settings, held)
            identity |= {
                SHAPE: shape.to_property(),
                PER_COLLECTION: text_of(settings.table_per_collection),
                MERGE_ON_READ: text_of(settings.merge_on_read),
            }
        changed = None
        if held is not None:
            changed = require_same(
                place.storage.url, held, identity, may_change=settings.allow_change
            )
        chosen = ChosenCollections(settings.read, was_other=SELECTION in (changed or {}))
        if held is None:
            chosen.require_there(planning)
        tables = _tables(settings, place, shape, identity, on_step)
        if lease.took_over:
            tables.take_over(lease)
        meter.shown = tables.state.offset
        lag = meter.measure() if settings.once else None
        total = lag.changes if lag is not None else None
        book = ProgressBook(place.progress_log(_entropy.uuid4().hex[:8]), total)
        book.waits = lambda: planning.waits or meter.waits or _slow_store()
        lease.tells = lambda: heartbeat_of(book.status())
        pipeline = Pipeline(place.storage.url, book, meter)
        if callable(executors):
            is_small = total is not None and total < SMALL_BATCH and not changed
            executors = ThisProcess() if is_small else executors()
        stack.callback(close_cached)  # of the small batches of this process
        what = f"{settings.kind.name} of {planning.identity().bucket} at {place}"
        stack.enter_context(watched(what, book, meter))
        loop = BatchLoop(
            executors,
            settings,
            tables,
            shape,
            planning,
            lease,
            book,
            meter,
            chosen,
            changed,
        )
        pipeline.run(loop, stack)
        return pipeline


def held_properties(place: TablePlace) -> dict[str, str] | None:
    """What a table that is there remembers; None if there is none; ConfigError if not of ours."""
    storage = place.storage
    if storage.is_local and storage.path.exists() and not storage.path.is_dir():
        raise ConfigError(
            f"table: {storage.url} cannot be a directory: there is a file; give another path"
        )
    found = OpenTable.open(storage.under(LEDGER)) or OpenTable.open(storage)
    if found is None:
        if any(True for _ in storage.files("_upriver/history/_delta_log")):
            require_readable(storage.url, {"upriver.kind": "mirror"})
        return None
    require_readable(storage.url, found.snapshot.configuration)
    return found.snapshot.configuration


def _slow_store() -> tuple[float, str] | None:
    """Since when, and which store, this process waits for."""
    slow = slow_request()
    return (slow[0], f"{slow[1]} does not answer") if slow is not None else None


def _tables(
    settings: PipelineSettings,
    place: TablePlace,
    shape: MirrorShape,
    identity: Mapping[str, str],
    on_step: Callable[[str], None],
) -> PipelineTables:
    documents = settings.kind.documents
    schema = shape.arrow_schema if documents else change_schema(settings.read)
    found = PipelineTables.open(place.storage, schema, settings.window, on_step)
    if found is not None:
        found.own_schemas = shape.own_schemas
        return found
    properties = {**identity, **_LEFT_TO_US, PIPELINE: _entropy.uuid4().hex}
    if documents:
        properties[HASH_KEY] = _entropy.token_hex(16)
    made = PipelineTables.create(place.storage, schema, properties, settings.window, on_step)
    made.own_schemas = shape.own_schemas
    return made


def _shape(settings: PipelineSettings, held: Mapping[str, str] | None) -> MirrorShape:
    """How rows look: as asked; columns that follow documents go on from those of the table."""
    before = MirrorShape.of_json(held[SHAPE]) if held is not None and SHAPE in held else None
    shape = _shape_of(settings, settings.columns_of(""), before)
    names = set(settings.collections_with_columns)
    if before is not None and shape.follows:
        names |= dict(before.own).keys()
    own = {
        name: _shape_of(
            settings, settings.columns_of(name), before.of(name) if before is not None else None
        )
        for name in sorted(names)
    }
    return replace(shape, own=tuple(own.items()))


def _shape_of(
    settings: PipelineSettings, columns: AskedColumns, before: MirrorShape | None
) -> MirrorShape:
    before = replace(before, own=()) if before is not None else None
    asked = columns.schema
    schema = ""
    hints = settings.column_types if asked == INFER else ""
    depth = settings.infer_depth if asked == INFER else DEPTH
    if asked == INFER:
        schema = hints or NO_COLUMNS
        if before is not None and before.schema and (before.hints, before.depth) == (hints, depth):
            schema = before.schema
    elif asked:
        schema = schema_json(asked)
        if before is None or before.schema != schema:
            require_column_names(json.loads(schema))
    shape = MirrorShape(
        text=settings.text,
        schema=schema,
        keep_deleted=settings.keep_deleted,
        groups=settings.groups,
        rescues=bool(schema),
        follows=asked == INFER,
        to_text=settings.widen_to_text,
        hints=hints,
        depth=depth,
        keys=KeyColumns(settings.key_text, columns.key_pattern),
        sources=columns.rename,
        versions=settings.kind.versions,
    )
    if before is not None and before.schema == schema:
        shape = replace(shape, full=before.full)
        as_before = replace(shape, rescues=before.rescues, follows=shape.follows and before.follows)
        if not settings.allow_change or as_before.to_property() == before.to_property():
            return as_before  # tables of earlier releases rescue nothing and follow nothing
    return shape


def place_of(table: str | os.PathLike[str], settings: PipelineSettings) -> TablePlace:
    return TablePlace.parse(table, settings.storage)
