"""Runs the code blocks of a Markdown page in order, in a directory of its own, as a reader would.

    ```sh                    run by bash; variables that are exported stay for later blocks
    ```sh title="... terminal"
                             goes on in the background after its first line of output
    ```console               lines after "$ " are commands, the others what they print; in these
                             "..." stands for anything, and alone on a line for any lines
    ```python                run as a script
    ```LANGUAGE title="NAME.EXT"
                             kept as a file of that name; a later block uses it

Other languages are not run. ``upriver`` and ``python`` are those of the running interpreter. A page
talks to default ports; here it gets free ones instead, so that two runs do not meet.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCS", "FOLLOWED", "ROOT", "Block", "Reader", "blocks_of", "name_of", "reading"]

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
#: Pages that are followed from their first to their last block.
FOLLOWED = [
    DOCS / "tutorial.md",
    *sorted((DOCS / "how-to").glob("*.md")),
    DOCS / "explanation" / "drafts-and-their-mistakes.md",
]
#: Seconds after which a command is taken for stuck; never reached when all is well.
PATIENCE = 600.0

_FENCE = re.compile(
    r'^(?P<indent> *)```(?P<language>\w+)(?: +title="(?P<title>[^"]*)")?[^\n]*\n'
    r"(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_FILE_NAME = re.compile(r"[\w-]+(\.[\w-]+)+")
_DEFAULT_ADDRESS = re.compile(r"(couchbases?://(?:localhost|127\.0\.0\.1))(?::11210)?/")
_DASHBOARD = re.compile(r"--dashboard\b(?!-)")
#: What a command says where a server takes a while to start.
_WAITING = re.compile(r"(?m)^waiting for .* to answer\n")
_CLUSTER = re.compile(r"upriver cluster start --data (\S+)")


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@dataclass(frozen=True, slots=True)
class Block:
    """A code block, and what its fence says about it."""

    language: str
    title: str
    code: str
    line: int

    @property
    def is_file(self) -> bool:
        return _FILE_NAME.fullmatch(self.title) is not None

    @property
    def stays(self) -> bool:
        """Whether it goes on while the next ones are run."""
        return self.language == "sh" and self.title.endswith("terminal")


def blocks_of(text: str, *languages: str) -> list[Block]:
    """The code blocks of a page in order; with languages, only theirs."""
    found = []
    for fence in _FENCE.finditer(text):
        indent = fence["indent"]
        code = re.sub(rf"^{indent}", "", fence["code"], flags=re.MULTILINE)
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Block(fence["language"], fence["title"] or "", code, line))
    return [block for block in found if not languages or block.language in languages]


def _matches(shown: str, printed: str) -> bool:
    """Whether a command printed what a page shows, where "..." stands for anything."""
    pattern = "".join(
        "(?:.*\n)*?" if line.strip() == "..." else f"{_line_pattern(line)}\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, printed) is not None


def _line_pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.rstrip().split("..."))) + " *"


class Reader:
    """Does what a page says."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._exported = directory / ".exported"
        self._exported.touch()
        self._port, self._dashboard_port = _free_ports(3), _free_ports(1)
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(directory),
            "COLUMNS": "100",
            # dlt keeps the pipelines of root elsewhere, and reports its use over the network
            "DLT_DATA_DIR": str(directory / ".dlt-data"),
            "RUNTIME__DLTHUB_TELEMETRY": "false",
        }
        self._staying: list[subprocess.Popen[str]] = []
        self._clusters: set[str] = set()

    def run(self, block: Block) -> str:
        """Runs a block and returns what it printed.

        AssertionError if it fails, or prints other things than the page shows.
        """
        self._clusters.update(_CLUSTER.findall(block.code))
        if block.is_file:
            (self._directory / block.title).write_text(self._here(block.code))
        elif block.stays:
            self._start(block)
        elif block.language == "sh":
            return self._shell(block, block.code)
        elif block.language == "console":
            self._console(block)
        elif block.language == "python":
            script = self._directory / f"line_{block.line}.py"
            script.write_text(self._here(block.code))
            return self._shell(block, f"python {script.name}")
        return ""

    def _console(self, block: Block) -> None:
        for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            size = 1
            while lines[size - 1].endswith("\\"):
                size += 1
            shown = self._here("\n".join(lines[size:]))
            # a failure that is shown is shown with what it printed
            printed = self._shell(block, "\n".join(lines[:size]), may_fail=True)
            printed = _WAITING.sub("", printed)
            assert _matches(shown, printed), (
                f"line {block.line} shows\n{shown}\nbut got\n{_end_of(printed)}"
            )

    def _shell(self, block: Block, code: str, *, may_fail: bool = False) -> str:
        script = (
            f'set -euo pipefail\nsource "{self._exported}"\n'
            f"trap 'export -p > \"{self._exported}\"' EXIT\n{self._here(code)}"
        )
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if may_fail else subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert may_fail or done.returncode == 0, (
            f"line {block.line}: {code}\nended with {done.returncode}\n"
            f"{_end_of(done.stdout)}\n{_end_of(done.stderr)}"
        )
        return done.stdout

    def _start(self, block: Block) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f'source "{self._exported}"\nexec {self._here(block.code.strip())}'],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._staying.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), f"line {block.line}: {block.code} printed nothing"

    def _here(self, text: str) -> str:
        """A text of the page with the programs and ports of this run."""
        text = text.replace(".venv/bin/", "")
        text = text.replace("upriver serve ", f"upriver serve --port {self._port} ")
        text = text.replace("upriver cluster start ", f"upriver cluster start --port {self._port} ")
        text = _DASHBOARD.sub(f"--dashboard {self._dashboard_port}", text)
        text = text.replace("127.0.0.1:8180", f"127.0.0.1:{self._dashboard_port}")
        return _DEFAULT_ADDRESS.sub(rf"\1:{self._port}/", text)

    def stop(self) -> None:
        """Ends what still runs."""
        for data in self._clusters:  # one that the page has stopped says so, and that is all
            subprocess.run(
                [Path(sys.executable).parent / "upriver", "cluster", "stop", "--data", data],
                cwd=self._directory,
                env=self._environment,
                capture_output=True,
                timeout=PATIENCE,
                check=False,
            )
        for process in self._staying:
            process.send_signal(signal.SIGTERM)
        for process in self._staying:
            assert process.stdout is not None
            with process.stdout:
                process.wait(PATIENCE)


def _end_of(text: str) -> str:
    """As much of a text as helps."""
    return text[-3000:]


@contextmanager
def reading() -> Iterator[Reader]:
    """A reader in a new directory, whose processes end with the block."""
    with tempfile.TemporaryDirectory(prefix="upriver-docs-") as directory:
        reader = Reader(Path(directory))
        try:
            yield reader
        finally:
            reader.stop()


def _free_ports(count: int) -> int:
    """The first of some ports in a row that nobody uses now."""
    while True:
        with ExitStack() as listeners:
            first = listeners.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                for more in range(port + 1, port + count):
                    listeners.enter_context(socket.socket()).bind(("127.0.0.1", more))
            except (OSError, OverflowError):
                continue
            return port
