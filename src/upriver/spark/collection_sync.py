"""Keeps the collections of a copy's target like those of its source, while the copy runs.

Collections of the source are created in the target, and what the source has dropped is dropped
there: its documents leave. Only collections that the source has had since the copy began are
dropped; their names are kept beside the positions of the copy.

The stream of changes goes on meanwhile. A collection may be made again under its name after it was
found to be dropped, and documents of the new one may be in the target's old one when that is
dropped. So the source is asked again afterwards, and such a collection is copied once more, as a
whole, without replacing what is newer.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .._files import replace_file
from ..batches.options import ReadOptions, WriteOptions
from ..consumer.topology.collection_names import SYSTEM_SCOPE
from ..consumer.transport.collection_manager import CollectionManager
from ..consumer.writing.documents import Documents
from ..errors import ConfigError, UpriverError

_log = logging.getLogger(__name__)

#: Seconds between two looks.
_EVERY: Final = 2.0
_MAX_FILE: Final = 16 * 1024 * 1024
_DEFAULT: Final = "_default._default"


class CollectionSync:
    """The collections of one copy."""

    def __init__(
        self,
        read: ReadOptions,
        write: WriteOptions,
        file: Path | None,
        copy_again: Callable[[str], None],
    ) -> None:
        self._read = read
        self._write = write
        #: The two buckets, with the nodes that they had at the last look.
        self.source, self.target = read.source, write.source
        #: Where names are kept; None to forget them at the end.
        self._file = file
        self._copy_again = copy_again
        self._known = self._loaded()

    def follow(self, is_active: Callable[[], bool]) -> None:
        """Looks now and then, in a thread, until the copy has ended."""

        def run() -> None:
            trouble = ""
            while True:
                time.sleep(_EVERY)
                if not is_active():
                    return
                try:
                    self.look()
                    trouble = ""
                except (UpriverError, OSError) as problem:
                    if str(problem) != trouble:
                        _log.warning("collections of the copy are looked at again: %s", problem)
                    trouble = str(problem)

        threading.Thread(target=run, name="upriver copied collections", daemon=True).start()

    def look(self) -> None:
        """Creates and drops what is due in the target."""
        target = self._target()  # first: what the source gets after it was asked is not dropped
        source = self._source()
        if not source <= self._known:
            self._known |= source
            self._save()
        missing = sorted(source - target)
        gone = sorted((self._known - source) & target)
        if not missing and not gone:
            return
        management = CollectionManager(self.target, self._write.access)
        for name in missing:
            management.ensure_collection(name)
        for name in gone:
            _log.info("%s was dropped in the source, and is dropped in the target", name)
            scope, _, collection = name.partition(".")
            management.drop_collection(scope, collection, missing_ok=True)
        for name in sorted(self._source() & set(gone)):
            management.ensure_collection(name)
            self._copy_again(name)

    def _source(self) -> set[str]:
        """The names of the source's collections that are copied."""
        read = self._read
        if read.mute is not None:  # a draft that has no others
            return {_DEFAULT}
        with Documents(self.source, read.access) as documents:
            live = documents.collections.live_names().values()
            self.source = self.source.knowing(documents.nodes)
        return {
            f"{scope}.{name}"
            for scope, name in live
            if scope != SYSTEM_SCOPE
            and (not read.scope or scope == read.scope)
            and (not read.collections or f"{scope}.{name}" in read.collections)
        }

    def _target(self) -> set[str]:
        with Documents(self.target, self._write.access) as documents:
            self.target = self.target.knowing(documents.nodes)
            return {".".join(name) for name in documents.collections.live_names().values()}

    def _loaded(self) -> set[str]:
        if self._file is None or not self._file.exists():
            return set()
        try:
            with open(self._file, encoding="utf-8") as opened:
                told = json.loads(opened.read(_MAX_FILE))
            return {name for name in told["collections"] if isinstance(name, str)}
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise ConfigError(
                f"{self._file}, with the names of the collections that were copied, cannot be "
                f"read: {problem}; if you delete it, collections that were dropped since stay in "
                "the target"
            ) from None

    def _save(self) -> None:
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"collections": sorted(self._known)})
        replace_file(self._file, content.encode(), private=False)
