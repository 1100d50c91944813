"""Runs the demo and keeps what it printed as a page of the documentation.

python tools/transcript.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "demo.md"

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
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
