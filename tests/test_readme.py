"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import Block, blocks_of, reading

pytestmark = pytest.mark.story

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_python_blocks_run_one_after_the_other() -> None:
    script = "".join(block.code for block in blocks_of(README, "python"))
    with reading() as reader:
        printed = reader.run(Block("python", "", script, 0))
    assert printed.splitlines()[0] == "mutation b'order:1' {'total': 10}"


def test_the_console_blocks_print_what_they_show() -> None:
    shown = blocks_of(README, "console")
    assert shown
    with reading() as reader:
        for block in shown:
            reader.run(block)


def test_the_make_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)$", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
