"""Paths into JSON text and edits at them, compared with the same done to plain Python values."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.errors import Status, StoreRefusal
from upriver.producer.keyvalue.subdoc import json_edits
from upriver.producer.keyvalue.subdoc.json_paths import Path, parse_path

NAMES = st.text(max_size=6)
SIMPLE = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
)
SIMPLE = SIMPLE.filter(lambda value: value not in (float("inf"), float("-inf")))
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.lists(VALUES, max_size=5) | st.dictionaries(NAMES, VALUES, max_size=5)
#: How a document may be written without being another one.
STYLES = st.sampled_from(
    [{"separators": (",", ":")}, {"indent": 2}, {"separators": (" ,\t", " :\r\n")}]
)


def written(value: Any, style: dict[str, Any] | None = None) -> str:
    return json.dumps(value, **(style or {}))


def same(one: Any, other: Any) -> bool:
    """Equal with types and order of members."""
    return written(one) == written(other)


def path_text(path: Path) -> str:
    """A path as a client writes it, every name in backticks."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += "." * bool(text) + "`" + part.replace("`", "``") + "`"
    return text


def follow(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


@st.composite
def places(draw: st.DrawFn) -> tuple[Any, Path]:
    """A document and a path to something in it."""
    document: Any = draw(DOCUMENTS)
    value: Any = document
    path: list[str | int] = []
    while isinstance(value, dict | list) and value and (not path or draw(st.booleans())):
        if isinstance(value, dict):
            part: str | int = draw(st.sampled_from(sorted(value)))
        else:
            part = draw(st.integers(0, len(value) - 1) | st.just(-1))
        path.append(part)
        value = value[part]  # type: ignore[index]  # an index for a list, a name for an object
    return document, tuple(path)


def refusal(call: Any, *arguments: Any, **named: Any) -> Status:
    with pytest.raises(StoreRefusal) as caught:
        call(*arguments, **named)
    return caught.value.status


# ---- paths -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a.b.c", ("a", "b", "c")),
        ("a[0].b[-1]", ("a", 0, "b", -1)),
        ("[12][3]", (12, 3)),
        ("[0].a", (0, "a")),
        ("`a.b`.c", ("a.b", "c")),
        ("`[0]`", ("[0]",)),
        ("a.`x``y`", ("a", "x`y")),
        ("``", ("",)),
        ("```` ``", None),
        ("ключ.値", ("ключ", "値")),
        ('with space."quotes"', ("with space", '"quotes"')),
        ("$document.exptime", ("$document", "exptime")),
    ],
)
def test_paths_are_read(text: str, path: Path | None) -> None:
    if path is None:
        assert refusal(parse_path, text.encode()) is Status.SUBDOC_PATH_INVALID
    else:
        assert parse_path(text.encode()) == path


@pytest.mark.parametrize(
    "text",
    [".", ".a", "a.", "a..b", "a[", "a[]", "a[x]", "a[-2]", "a[01]", "a]", "a.[0]", "`a", "a`b`"],
)
def test_what_is_no_path_is_refused(text: str) -> None:
    assert refusal(parse_path, text.encode()) is Status.SUBDOC_PATH_INVALID


def test_paths_have_limits() -> None:
    assert refusal(parse_path, b"\xff") is Status.SUBDOC_PATH_INVALID
    assert len(parse_path(b".".join([b"a"] * 32))) == 32
    assert refusal(parse_path, b".".join([b"a"] * 33)) is Status.SUBDOC_PATH_TOO_BIG
    assert refusal(parse_path, b"a" * 1025) is Status.SUBDOC_PATH_TOO_BIG


@given(st.lists(NAMES | st.integers(-1, 10**9 - 1), max_size=8).map(tuple))
def test_any_path_can_be_written_and_read(path: Path) -> None:
    assert parse_path(path_text(path).encode()) == path


@given(st.binary(max_size=40))
def test_any_bytes_are_a_path_or_refused(raw: bytes) -> None:
    try:
        parse_path(raw)
    except StoreRefusal as refused:
        assert refused.status in (Status.SUBDOC_PATH_INVALID, Status.SUBDOC_PATH_TOO_BIG)


# ---- looking -----------------------------------------------------------------------------


@given(places(), STYLES)
def test_a_path_leads_where_it_leads_in_python(
    place: tuple[Any, Path], style: dict[str, Any]
) -> None:
    document, path = place
    text = written(document, style)
    expected = follow(document, path)
    assert same(json.loads(json_edits.look_up(text, path)), expected)
    if isinstance(expected, dict | list):
        assert json_edits.count_entries(text, path) == len(expected)
    else:
        assert refusal(json_edits.count_entries, text, path) is Status.SUBDOC_PATH_MISMATCH


@given(places())
def test_what_is_not_there_is_not_found(place: tuple[Any, Path]) -> None:
    document, path = place
    expected, text = follow(document, path), written(document)
    by_name = refusal(json_edits.look_up, text, (*path, "a longer name"))
    by_position = refusal(json_edits.look_up, text, (*path, 1000))
    missing, mismatch = Status.SUBDOC_PATH_NOT_FOUND, Status.SUBDOC_PATH_MISMATCH
    assert by_name is (missing if isinstance(expected, dict) else mismatch)
    assert by_position is (missing if isinstance(expected, list) else mismatch)


# ---- editing -----------------------------------------------------------------------------


@given(places(), VALUES, STYLES)
def test_replacing(place: tuple[Any, Path], value: Any, style: dict[str, Any]) -> None:
    document, path = place
    edited = json.loads(json_edits.replace(written(document, style), path, written(value)))
    expected = copy.deepcopy(document)
    if path:
        follow(expected, path[:-1])[path[-1]] = value
    else:
        expected = value
    assert same(edited, expected)


@given(places().filter(lambda place: bool(place[1])), STYLES)
def test_removing(place: tuple[Any, Path], style: dict[str, Any]) -> None:
    document, path = place
    edited = json.loads(json_edits.remove(written(document, style), path))
    expected = copy.deepcopy(document)
    del follow(expected, path[:-1])[path[-1]]
    assert same(edited, expected)


@given(places(), st.lists(NAMES, min_size=1, max_size=4), VALUES, STYLES, st.booleans())
def test_members(
    place: tuple[Any, Path], names: list[str], value: Any, style: dict[str, Any], parents: bool
) -> None:
    document, path = place
    if not isinstance(follow(document, path), dict):
        return
    full, text = (*path, *names), written(document, style)
    expected = copy.deepcopy(document)
    inner, fresh, status = follow(expected, path), False, None
    for position, name in enumerate(names):
        if not isinstance(inner, dict):
            status = Status.SUBDOC_PATH_MISMATCH
            break
        if position == len(names) - 1:
            fresh = name not in inner
            inner[name] = value
        elif name not in inner and not parents:
            status = Status.SUBDOC_PATH_NOT_FOUND
            break
        else:
            inner = inner.setdefault(name, {})
    if status is not None:
        assert refusal(json_edits.upsert_member, text, full, "1", parents=parents) is status
        assert refusal(json_edits.add_member, text, full, "1", parents=parents) is status
        return
    edited = json_edits.upsert_member(text, full, written(value), parents=parents)
    assert same(json.loads(edited), expected)
    if fresh:
        assert json_edits.add_member(text, full, written(value), parents=parents) == edited
    else:
        status = refusal(json_edits.add_member, text, full, "1", parents=parents)
        assert status is Status.SUBDOC_PATH_EXISTS


@given(places(), st.lists(VALUES, min_size=1, max_size=3), STYLES)
def test_arrays_grow_at_both_ends_and_between(
    place: tuple[Any, Path], values: list[Any], style: dict[str, Any]
) -> None:
    document, path = place
    target, text = follow(document, path), written(document, style)
    several = ",".join(map(written, values))
    if not isinstance(target, list):
        for first in (True, False):
            status = refusal(json_edits.push, text, path, several, first=first)
            assert status is Status.SUBDOC_PATH_MISMATCH
        return

    def grown(at: int) -> Any:
        expected = copy.deepcopy(document)
        follow(expected, path)[at:at] = values
        return expected

    assert same(json.loads(json_edits.push(text, path, several, first=True)), grown(0))
    last = json_edits.push(text, path, several, first=False)
    assert same(json.loads(last), grown(len(target)))
    for at in range(len(target) + 1):
        edited = json.loads(json_edits.insert_element(text, (*path, at), several))
        assert same(edited, grown(at))
    beyond = refusal(json_edits.insert_element, text, (*path, len(target) + 1), several)
    assert beyond is Status.SUBDOC_PATH_NOT_FOUND


@given(st.lists(SIMPLE, max_size=6), SIMPLE)
def test_a_set_has_every_value_once(there: list[Any], value: Any) -> None:
    known = any(written(other) == written(value) or _equal(other, value) for other in there)
    if known:
        status = refusal(json_edits.add_unique, written(there), (), written(value))
        assert status is Status.SUBDOC_PATH_EXISTS
    else:
        edited = json_edits.add_unique(written(there), (), written(value))
        assert same(json.loads(edited), [*there, value])


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def test_sets_hold_simple_values_only() -> None:
    add = json_edits.add_unique
    assert refusal(add, "[]", (), " {}") is Status.SUBDOC_VALUE_CANNOT_INSERT
    assert refusal(add, "[[1]]", (), "1") is Status.SUBDOC_PATH_MISMATCH
    assert refusal(add, "{}", (), "1") is Status.SUBDOC_PATH_MISMATCH
    assert refusal(add, "{}", ("a",), "1") is Status.SUBDOC_PATH_NOT_FOUND
    assert add("{}", ("a",), "1", parents=True) == '{"a":[1]}'
    assert add("[true]", (), "1") == "[true,1]"


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_counters_stay_within_64_bits(number: int, delta: int) -> None:
    text, raw = f'{{"n": {number} }}', str(delta).encode()
    if delta == 0:
        assert refusal(json_edits.count_up, text, ("n",), raw) is Status.SUBDOC_DELTA_INVALID
    elif -(2**63) <= number + delta < 2**63:
        sum_ = number + delta
        assert json_edits.count_up(text, ("n",), raw) == (f'{{"n": {sum_} }}', sum_)
    else:
        status = refusal(json_edits.count_up, text, ("n",), raw)
        assert status is Status.SUBDOC_VALUE_CANNOT_INSERT


@pytest.mark.parametrize(
    ("text", "path", "delta", "status"),
    [
        ('{"n":1.5}', ("n",), b"1", Status.SUBDOC_PATH_MISMATCH),
        ('{"n":"1"}', ("n",), b"1", Status.SUBDOC_PATH_MISMATCH),
        ('{"n":9223372036854775808}', ("n",), b"1", Status.SUBDOC_NUMBER_RANGE),
        ('{"n":1}', ("n",), b"1.5", Status.SUBDOC_DELTA_INVALID),
        ('{"n":1}', ("n",), b"", Status.SUBDOC_DELTA_INVALID),
        ('{"n":1}', ("n",), b"9" * 19, Status.SUBDOC_DELTA_INVALID),
        ('{"n":1}', ("m", "n"), b"1", Status.SUBDOC_PATH_NOT_FOUND),
        ('{"n":[]}', ("n", 0), b"1", Status.SUBDOC_PATH_NOT_FOUND),
        ("[1]", (), b"1", Status.SUBDOC_PATH_INVALID),
    ],
)
def test_what_cannot_be_counted(text: str, path: Path, delta: bytes, status: Status) -> None:
    assert refusal(json_edits.count_up, text, path, delta) is status


def test_a_counter_begins_at_its_delta() -> None:
    assert json_edits.count_up("{}", ("n",), b"-3") == ('{"n":-3}', -3)
    assert json_edits.count_up("{}", ("a", "n"), b"2", parents=True) == ('{"a":{"n":2}}', 2)


def test_the_rest_of_the_text_stays_as_it_was() -> None:
    text = '{ "exact" : 1.000000000000000000001 , "n":1,\t"\\u00e9": [ 1e400 ] }'
    edited = json_edits.replace(text, ("n",), "2")
    assert edited == text.replace('"n":1', '"n":2')
    assert json_edits.remove(edited, ("n",)) == (
        '{ "exact" : 1.000000000000000000001 , "\\u00e9": [ 1e400 ] }'
    )


@pytest.mark.parametrize(
    ("call", "arguments", "status"),
    [
        (json_edits.add_member, ("{}", (), "1"), Status.SUBDOC_PATH_INVALID),
        (json_edits.upsert_member, ("[]", (0,), "1"), Status.SUBDOC_PATH_INVALID),
        (json_edits.remove, ("{}", ()), Status.SUBDOC_PATH_INVALID),
        (json_edits.remove, ("{}", ("a",)), Status.SUBDOC_PATH_NOT_FOUND),
        (json_edits.insert_element, ("[]", (-1,), "1"), Status.SUBDOC_PATH_INVALID),
        (json_edits.insert_element, ("[]", ("a",), "1"), Status.SUBDOC_PATH_INVALID),
        (json_edits.insert_element, ("{}", (0,), "1"), Status.SUBDOC_PATH_MISMATCH),
        (json_edits.look_up, ('{"a" 1}', ("a",)), Status.SUBDOC_DOC_NOT_JSON),
        (json_edits.look_up, ('{"a":1', ("b",)), Status.SUBDOC_DOC_NOT_JSON),
        (json_edits.look_up, ("[1 2]", (1,)), Status.SUBDOC_DOC_NOT_JSON),
        (json_edits.look_up, ("", ("a",)), Status.SUBDOC_DOC_NOT_JSON),
        (json_edits.look_up, ("[" * 99_999, (0,)), Status.SUBDOC_DOC_TOO_DEEP),
        (json_edits.checked_value, (b"{", ()), Status.SUBDOC_VALUE_CANNOT_INSERT),
        (json_edits.checked_value, (b"1,2", ()), Status.SUBDOC_VALUE_CANNOT_INSERT),
        (json_edits.checked_value, (b"\xff", ()), Status.SUBDOC_VALUE_CANNOT_INSERT),
        (json_edits.checked_value, (b"NaN", ()), Status.SUBDOC_VALUE_CANNOT_INSERT),
        (json_edits.checked_value, (b"[" * 33 + b"]" * 33, ()), Status.SUBDOC_VALUE_TOO_DEEP),
        (json_edits.checked_value, (b"[]", ("a",) * 32), Status.SUBDOC_VALUE_TOO_DEEP),
        (json_edits.checked_value, (b"[" * 99_999, ()), Status.SUBDOC_VALUE_TOO_DEEP),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, arguments: Any, status: Status) -> None:
    assert refusal(call, *arguments) is status


def test_values_are_one_or_several() -> None:
    check = json_edits.checked_value
    assert check(b"1, [2]", (), several=True) == "1, [2]"
    assert refusal(check, b" ", (), several=True) is Status.SUBDOC_VALUE_CANNOT_INSERT
    assert refusal(check, b"1],[2", (), several=True) is Status.SUBDOC_VALUE_CANNOT_INSERT
    assert check(b'"' + b"[" * 50 + b'"', ()) == '"' + "[" * 50 + '"'
