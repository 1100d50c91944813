"""Makes docs/reference/troubleshooting.md: every error of the tree with its texts, cause and cure.

Texts are read from the source: each call of an error class with a text. What differs from case to
case is shown as an ellipsis.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from upriver import errors

__all__ = ["cure_table", "error_list"]

_SOURCE: Final = Path(__file__).resolve().parent.parent / "src" / "upriver"

#: By package, the longest prefix first: where an error comes from.
_AREAS: Final = (
    ("tables", "Tables and pipelines"),
    ("files", "Tables and pipelines"),
    ("batches", "The Spark source and sink"),
    ("spark", "The Spark source and sink"),
    ("settings", "Settings and options"),
    ("consumer", "Reading and writing from Python"),
    ("cli", "Commands"),
    ("cluster", "The cluster"),
    ("dashboard", "The dashboard"),
    ("producer", "The server"),
    ("store", "The store"),
    ("testing", "Test helpers"),
    ("session", "The protocol"),
    ("wire", "The protocol"),
    ("", "Elsewhere"),
)


class Cure(NamedTuple):
    cause: str
    cure: str


CURES: Final[dict[str, Cure]] = {
    "UpriverError": Cure(
        "what the text says", "the base class of all others; catch it to catch all"
    ),
    "ProtocolError": Cure("one side broke a rule of the protocol", "see its subclasses"),
    "LocalProtocolError": Cure(
        "a call that would break a rule; nothing was sent",
        "correct the call; the text names the rule",
    ),
    "EncodeError": Cure(
        "a message that the chosen draft has no form for",
        "choose another dialect, or leave the field out",
    ),
    "RemoteProtocolError": Cure(
        "the peer broke a rule",
        "find out what listens at that address, and which release; `upriver decode` explains a "
        "capture",
    ),
    "DecodeError": Cure(
        "bytes that break the wire format",
        "`upriver decode` explains the packet; `usable` says whether the connection can go on",
    ),
    "StreamRuleBroken": Cure(
        "a producer whose messages contradict each other",
        "report it to the vendor of that producer; the reader reconnects and goes on from its last "
        "good position",
    ),
    "ConnectionFailed": Cure(
        "no listener at the address, a network failure, a node that restarts",
        "check the address; a reader that runs tries again by itself, with growing pauses, until "
        "`give_up_after` (Spark: `retryTimeout`)",
    ),
    "AuthenticationFailed": Cure(
        "wrong name or password; a certificate that `--ca` did not sign",
        "check the user with `upriver users list`; never switch the check off outside of a test",
    ),
    "BucketNotFound": Cure(
        "a typing error, or a user without a role in that bucket",
        "servers do not always tell which of both: check both",
    ),
    "NotADcpServer": Cure(
        "the port of something else, often the HTTP port",
        "data is served on 11210, and on 11207 with TLS",
    ),
    "StatusError": Cure(
        "the server understood and refused; `status` says why",
        "`retriable` says whether the same request may succeed later",
    ),
    "RollbackRequired": Cure(
        "a failover, and a reader that was told to fail then",
        "[handle the rollback](../how-to/handling-rollbacks.md)",
    ),
    "StreamEnded": Cure(
        "the producer ended a stream that the reader could not take up again",
        "look at `reason`; the reader has tried for as long as it was allowed to",
    ),
    "StoreError": Cure("the store cannot do what was asked", "see its subclasses, and the text"),
    "StoreRefusal": Cure(
        "one operation was refused and nothing was changed",
        "`status` is what a client is answered, with this text where it asked for error texts",
    ),
    "StoreLocked": Cure(
        "another process has the data directory open", "stop it; the text names it"
    ),
    "StoreTooNew": Cure("a later release wrote the directory", "use that release"),
    "StoreDamaged": Cure(
        "what is on disk contradicts itself",
        "nothing was opened or changed: restore a copy, or begin with an empty directory and let "
        "it be filled again",
    ),
    "StoreFull": Cure(
        "no room on the disk",
        "make room: the bucket takes writes again by itself, and clients get a temporary failure "
        "until then; nothing of the last group was acknowledged",
    ),
    "StoreOutOfFiles": Cure(
        "the process has as many files open as it may",
        "raise the limit (`ulimit -n`, `LimitNOFILE`) or close connections; the bucket takes "
        "writes again by itself",
    ),
    "StoreNotWritable": Cure("permissions", "give the directory to the user who runs the server"),
    "StoreClosed": Cure(
        "the store or the backfill was closed, by its owner or while the files are opened again "
        "after a failed write",
        "try again; a stream is opened again where it was",
    ),
    "InternalError": Cure(
        "a fault of Upriver itself", "report it with the traceback (`--debug` prints it)"
    ),
    "ConfigError": Cure(
        "a setting, an option, a file", "the text names it, and the nearest one that exists"
    ),
    "MissingExtra": Cure(
        "an optional package is not installed",
        "install the extra that the text names, such as `pip install 'upriver[spark]'`",
    ),
}


def _tree() -> list[str]:
    """The classes of the error tree, in the order of its drawing."""
    drawn = [
        word
        for line in (errors.__doc__ or "").splitlines()
        for word in line.replace("├──", "").replace("└──", "").replace("│", "").split()[:1]
        if isinstance(getattr(errors, word, None), type)
    ]
    kinds = {
        name
        for name in errors.__all__
        if isinstance(kind := getattr(errors, name), type) and issubclass(kind, errors.UpriverError)
    }
    for found, what in ((set(drawn), "drawn in errors.py"), (set(CURES), "in CURES")):
        if found != kinds:
            raise SystemExit(f"{sorted(found ^ kinds)} of upriver.errors: not the same {what}")
    return drawn


def cure_table() -> Iterator[str]:
    """Each error with its usual cause and what to do."""
    yield "| error | usual cause | what to do |\n|---|---|---|"
    for name in _tree():
        yield f"| `{name}` | {CURES[name].cause} | {CURES[name].cure} |"


def error_list() -> Iterator[str]:
    """Each error with the texts that it is raised with, by area."""
    texts = _texts()
    for name in _tree():
        found = texts.get(name, {})
        if not found:
            continue
        yield f"## {name}\n"
        yield f"**Cause**: {CURES[name].cause}. **Cure**: {CURES[name].cure}.\n"
        for area in dict.fromkeys(title for _, title in _AREAS):
            if area in found:
                yield f"{area}:\n"
                yield from (f"- `{text}`" for text in sorted(found[area]))
                yield ""


def _texts() -> dict[str, dict[str, set[str]]]:
    """By class and area: the texts in the source."""
    found: dict[str, dict[str, set[str]]] = {}
    for path in sorted(_SOURCE.rglob("*.py")):
        place = path.relative_to(_SOURCE).as_posix()
        area = next(title for prefix, title in _AREAS if place.startswith(prefix))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
                if name in CURES and any(map(str.isalpha, text := _text(node))):
                    found.setdefault(name, {}).setdefault(area, set()).add(text)
    return found


def _text(call: ast.Call) -> str:
    """The text of an error, "" if the source does not have it here."""
    given = [*call.args, *(one.value for one in call.keywords if one.arg in _TEXT_ARGUMENTS)]
    parts = [part for one in given if (part := _literal(one))]
    return "; ".join(parts).replace("`", "'").replace("{where}", "…")


#: Keyword arguments that are part of the text.
_TEXT_ARGUMENTS: Final = frozenset({"problem", "hint", "rule", "reason", "detail", "context"})


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return " ".join(node.value.split())
    if isinstance(node, ast.JoinedStr):
        parts = (one.value if isinstance(one, ast.Constant) else "…" for one in node.values)
        return " ".join("".join(map(str, parts)).split())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return f"{_literal(node.left)} {_literal(node.right)}".strip()
    return ""
