"""Which changes ``upriver tail`` prints: by key, and by members of JSON documents."""

from __future__ import annotations

import heapq
import json
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from ..._extras import extra
from ...consumer.changes import Change
from ...errors import ConfigError

_log = logging.getLogger(__name__)

ChangeFilter = Callable[[Change], bool]

_MAX_EXPRESSION: Final = 10_000


def change_filter(
    *,
    prefix: str | None = None,
    regex: str | None = None,
    where: str | None = None,
) -> ChangeFilter | None:
    """A function that returns whether a change is printed; None if all are."""
    tests: list[ChangeFilter] = []
    if prefix is not None:
        start = prefix.encode()
        tests.append(lambda change: change.key.startswith(start))
    if regex is not None:
        tests.append(_matches(regex))
    if where is not None:
        tests.append(_selected(where))
    if not tests:
        return None
    return lambda change: all(test(change) for test in tests)


def _matches(regex: str) -> ChangeFilter:
    try:
        search = re.compile(regex.encode()).search
    except re.error as problem:
        raise ConfigError(f"--key-regex {regex!r} is no regular expression: {problem}") from None
    return lambda change: search(change.key) is not None


def _selected(where: str) -> ChangeFilter:
    """Whether the JMESPath expression is true of a document.

    Deletions, and values that are not JSON, have no members, so the expression sees null.
    """
    with extra("cli"):
        import jmespath
        import jmespath.exceptions

    if len(where) > _MAX_EXPRESSION:
        raise ConfigError(f"--where has more than {_MAX_EXPRESSION} characters")
    try:
        expression = jmespath.compile(where)
    except jmespath.exceptions.JMESPathError as problem:
        raise ConfigError(f"--where {where!r} is no JMESPath expression: {problem}") from None

    told: set[str] = set()

    def test(change: Change) -> bool:
        try:
            document: Any = json.loads(change.body)
        except (ValueError, RecursionError):
            document = None
        try:
            found = expression.search(document)
        except jmespath.exceptions.JMESPathError:
            return False  # a function that does not take what this document has there
        except TypeError as problem:  # text and number compared: JMESPath says that is null
            if str(problem) not in told:
                told.add(str(problem))
                text = "--where: %s, as in %r; documents for which that is so are left out"
                _log.warning(text, problem, change.key)
            return False
        return found is not None and found is not False and found not in ("", [], {})

    return test


def last_changes(
    changes: Iterable[Change], count: int, wanted: ChangeFilter | None
) -> list[Change]:
    """The newest changes, oldest first. The order of different vbuckets is that of their CAS."""
    chosen = changes if wanted is None else filter(wanted, changes)
    return heapq.nlargest(count, chosen, key=lambda change: change.cas)[::-1]
