"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), namespace)
    assert capsys.readouterr().out.splitlines()[:2] == ["True 0", "b'order:1'"]


def test_console_blocks_print_what_they_show() -> None:
    shown = blocks("console")
    assert shown
    for block in shown:
        command, _, expected = block.partition("\n")
        words = command.removeprefix("$ .venv/bin/upriver ").split()
        result = subprocess.run(
            [sys.executable, "-m", "upriver", *words], capture_output=True, text=True, check=False
        )
        assert result.stdout == expected


def test_make_commands_exist() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)$", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
