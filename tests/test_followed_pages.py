"""What the documentation shows is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_blocks import FOLLOWED, blocks_of, name_of, reading


@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_a_page_can_be_followed_from_top_to_bottom(page: Path) -> None:
    blocks = blocks_of(page.read_text())
    assert blocks
    with reading() as reader:
        for block in blocks:
            reader.run(block)
