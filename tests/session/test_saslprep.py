"""The one form in which names and passwords are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.session.saslprep import prepare


@given(st.text(max_size=40))
def test_preparing_is_done_once(text: str) -> None:
    try:
        once = prepare(text)
    except ValueError:
        return
    assert prepare(once) == once


@pytest.mark.parametrize(
    ("typed", "compared"),
    [
        ("plain", "plain"),
        ("ju\u0308rgen", "jürgen"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("I\u00adX", "IX"),
    ],
)
def test_what_looks_alike_is_alike(typed: str, compared: str) -> None:
    assert prepare(typed) == compared


@pytest.mark.parametrize("text", ["\x07", "a\x00", "\ue000", "\u202e"])
def test_what_nobody_can_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not allowed"):
        prepare(text)
