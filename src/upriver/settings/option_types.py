"""The keyword arguments of the pipelines, ``read_table`` and ``dcp_source``, for type checkers.

Each is a setting of `all_settings` in snake case; a test compares both. At run time the names of
Spark's options (``maxOffsetsPerTrigger``) are accepted too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from ..wire.protocol_enums import DialectName


class SourceOptions(TypedDict, total=False):
    """Options of every reader of documents: which server, which documents, how they are sent."""

    bucket: str
    user: str
    password: str
    password_file: str | os.PathLike[str]
    password_env: str
    ca_file: str | os.PathLike[str]
    insecure: bool
    allow_plain: bool
    connect_timeout: float | str
    request_timeout: float | str
    retry_timeout: float | str
    collections: str
    scope: str
    vbuckets: str
    dialect: DialectName
    no_value: bool
    value_format: Literal["binary", "string"]
    compression: bool
    flow_control_buffer: int | str


class PipelineOptions(SourceOptions, total=False):
    """Options of the source and of every pipeline."""

    max_offsets_per_trigger: int
    max_bytes_per_trigger: int | str
    min_partitions: int
    num_partitions: int
    fail_on_data_loss: bool
    on_rollback: Literal["emit", "fail"]
    decompress: bool
    long_poll: float | str
    read_ahead: int
    once: bool
    trigger: float | str
    compact_every: int
    keep_versions: float | str
    keep_versions_size: int | str
    task_memory: int | str
    allow_change: bool
    storage_options: str | Mapping[str, str]


class ChangelogOptions(PipelineOptions, total=False):
    """Options of a change log."""

    starting_offsets: str
    xattrs: bool
    mode: Literal["PERMISSIVE", "FAILFAST"]
    column_name_of_corrupt_record: str


class HistoryOptions(PipelineOptions, total=False):
    """Options of a history."""

    value_schema: str | Mapping[str, str] | None
    column_types: str | Sequence[str] | Mapping[str, str]
    infer_depth: int
    rename: str | Mapping[str, str]
    key_format: Literal["binary", "string"]
    key_pattern: str | Mapping[str, str]
    table_per_collection: bool
    groups: int
    merge_on_read: bool


class MirrorOptions(HistoryOptions, total=False):
    """Options of a mirror."""

    widen_to_text: bool
    keep_deleted: bool


class TableOptions(TypedDict, total=False):
    """Options of reading a table."""

    version_as_of: int | None
    timestamp_as_of: str | None
    columns: str | Sequence[str] | None
    read_change_feed: bool
    starting_version: int | None
    ending_version: int | None
    storage_options: str | Mapping[str, str] | None
    push_filters: bool
