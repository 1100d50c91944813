"""The kinds of tables that pipelines keep, and what is different about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..settings.all_settings import CHANGELOG, HISTORY, MIRROR
from ..settings.setting import Setting


@dataclass(frozen=True, slots=True)
class TableKind:
    """What a table has of a bucket."""

    #: As a table remembers it.
    name: str
    settings: tuple[Setting, ...]
    #: Whether rows are documents, which are found by their names; else they are changes.
    documents: bool = True
    #: Whether there is a row for each version of a document, and none is ever lost by a change.
    versions: bool = False


CHANGE_LOG: Final = TableKind("changelog", CHANGELOG, documents=False)
MIRROR_TABLE: Final = TableKind("mirror", MIRROR)
HISTORY_TABLE: Final = TableKind("history", HISTORY, versions=True)
KINDS: Final = {kind.name: kind for kind in (CHANGE_LOG, MIRROR_TABLE, HISTORY_TABLE)}
