"""The options of the format ``upriver-table``, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from ..errors import ConfigError
from ..files.storage import Storage
from ..settings.all_settings import TABLE_READ
from ..settings.moments import parse_moment
from ..settings.setting import Given
from .format.delta_log import TableSnapshot, read_snapshot, version_at
from .pipeline_settings import storage_options


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReadOptions:
    """Which table is read, and what of it."""

    path: str
    version_as_of: int | None
    timestamp_as_of: datetime | None
    #: Empty for all.
    columns: tuple[str, ...]
    read_change_feed: bool
    starting_version: int | None
    ending_version: int | None
    push_filters: bool
    #: As `deltalake` takes them.
    storage_options: Mapping[str, str] = field(repr=False)

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Self:
        """Parses the options that Spark passes; ConfigError names what is wrong."""
        given = Given(TABLE_READ, texts)
        moment = given["timestampAsOf"]
        if not given["path"]:
            raise ConfigError("path is missing: give the table in load(...)")
        options = cls(
            storage_options=storage_options(given["storageOptions"]),
            timestamp_as_of=parse_moment(moment, "timestampAsOf") if moment else None,
            **given.fields(
                *("path", "versionAsOf", "columns", "readChangeFeed", "startingVersion"),
                *("endingVersion", "pushFilters"),
            ),
        )
        if options.read_change_feed and options.starting_version is None:
            raise ConfigError("readChangeFeed: give startingVersion")
        if options.version_as_of is not None and options.timestamp_as_of is not None:
            raise ConfigError(
                "versionAsOf and timestampAsOf contradict each other: give one of them"
            )
        return options

    @property
    def storage(self) -> Storage:
        return Storage.parse(self.path, self.storage_options)

    def rows_snapshot(self) -> TableSnapshot:
        """The version whose rows are read."""
        version = self.version_as_of
        if self.timestamp_as_of is not None:
            version = version_at(self.storage, self.timestamp_as_of)
        return self.snapshot(version)

    def snapshot(self, version: int | None) -> TableSnapshot:
        """A version of the table; None is the newest."""
        found = read_snapshot(self.storage, version)
        if found is None:
            raise ConfigError(f"there is no Delta table at {self.storage.url}")
        return found
