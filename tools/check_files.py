"""Finds what does not belong in a file of the repository, whatever its language.

    python tools/check_files.py [FILE ...]

Without names it looks at every file that git knows: trailing whitespace, a last line that does not
end or blank lines after it, conflict marks, more than 500 KB, and TOML, YAML and JSON that cannot
be read.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 500_000
#: Files that hold what programs print, to the letter.
AS_PRINTED = ("docs/demo.md", "docs/reference/", "tests/data/")
CONFLICT_MARKS = ("<<<<<<< ", ">>>>>>> ")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Takes tags of programs, such as mkdocs', for what they are on."""


_Loader.add_multi_constructor("", lambda loader, suffix, node: None)


def faults(name: str, content: bytes) -> Iterator[str]:
    """What is wrong with a file, as lines."""
    if len(content) > MOST_BYTES:
        yield f"{name}: {len(content)} bytes are too many"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return  # an image or an archive
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line.startswith(CONFLICT_MARKS):
            yield f"{name}:{number}: a conflict mark"
        if line != line.rstrip() and not name.startswith(AS_PRINTED):
            yield f"{name}:{number}: trailing whitespace"
    if text and not name.startswith(AS_PRINTED) and (lines[-1] or not "".join(lines[-2:])):
        yield f"{name}: it does not end with one newline"
    try:
        match Path(name).suffix:
            case ".toml":
                tomllib.loads(text)
            case ".json":
                json.loads(text)
            case ".yml" | ".yaml":
                yaml.load(text, _Loader)
    except (ValueError, yaml.YAMLError) as problem:
        yield f"{name}: {problem}"


def main(names: list[str]) -> int:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    found = 0
    for name in names or listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file():
            for fault in faults(name, path.read_bytes()):
                found += 1
                print(fault)
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
