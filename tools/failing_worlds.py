"""The seeds of simulated worlds that broke a guarantee, kept in a file until they no longer do.

build/failing-worlds/SCOPE has a seed on each line. What runs fresh seeds runs those of the file
first, so that a failure is not forgotten because the next run drew others.
"""

from __future__ import annotations

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent.parent / "build" / "failing-worlds"


def failing(scope: str, directory: Path = DIRECTORY) -> list[int]:
    """The seeds that broke a guarantee when they last ran."""
    file = directory / scope
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def remember(scope: str, seed: int, *, broke: bool, directory: Path = DIRECTORY) -> None:
    """Adds a seed to the file, or takes it out because it has passed."""
    before = failing(scope, directory)
    after = sorted({*before, seed} if broke else {*before} - {seed})
    if after != before:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / scope).write_text("".join(f"{one}\n" for one in after))
