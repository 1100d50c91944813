"""Runs the demo and keeps what it printed: as a page of the documentation, and as a picture.

python tools/transcript.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "demo.md"
PICTURE = ROOT / "docs" / "images" / "demo.svg"
#: Pixels of a character and of a line in the picture.
WIDTH, HEIGHT = 7.8, 18
#: A space that SVG does not join with the next one.
NO_BREAK = "\N{NO-BREAK SPACE}"

HEAD = """# The demo, as it was

What `make demo` printed; `tools/transcript.py` makes this page. A shop is open for a while, a
replica that was behind takes over a part of its database, and the table in Spark follows.

```text
"""


def main() -> None:
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        check=True,
    )
    # where temporary files are is one machine's business
    printed = re.sub(r"\S*/upriver-demo-\w+", "DIRECTORY", done.stdout.rstrip())
    PAGE.write_text(f"{HEAD}{printed}\n```\n")
    PICTURE.write_text(picture(printed))
    print(f"wrote {PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")


def picture(printed: str) -> str:
    """A terminal with this text, as SVG. Each line is as wide as its characters, in any font."""
    lines = ["$ make demo", *printed.splitlines()]
    wide = max(map(len, lines)) * WIDTH + 32
    high = len(lines) * HEIGHT + 52
    rows = "\n".join(
        f'<text x="16" y="{48 + number * HEIGHT}" textLength="{len(line) * WIDTH:.0f}">'
        f"{escape(line).replace(' ', NO_BREAK)}</text>"
        for number, line in enumerate(lines)
        if line.strip()
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" role="img">
<title>What make demo prints</title>
<rect width="100%" height="100%" rx="10" fill="#161b22"/>
<g fill="#5b6674"><circle cx="20" cy="18" r="5"/><circle cx="38" cy="18" r="5"/>
<circle cx="56" cy="18" r="5"/></g>
<g fill="#e8ecf1" font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
 font-size="13">
{rows}
</g>
</svg>
"""


if __name__ == "__main__":
    main()
