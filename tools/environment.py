"""Makes the project's virtual environment, and renews it when its dependencies changed.

    python3 tools/environment.py DIRECTORY

Needs nothing but Python 3.11. Run by the Makefile before every command; when nothing changed it
only compares one hash.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "dev,all"
#: What the installed environment depends on; the package itself is installed in place.
INPUTS = (
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
    "src/upriver/wire/columns/_speedups.c",
)


def fingerprint() -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {EXTRAS} {ROOT}".encode())
    for name in INPUTS:
        path = ROOT / name
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    if sys.version_info < (3, 11):
        sys.exit(f"Python 3.11 or later is needed, this is {sys.version.split()[0]}: set PYTHON=")
    directory = Path(sys.argv[1]).resolve()
    python = directory / "bin" / "python"
    stamp = directory / ".upriver-installed"
    wanted = fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"setting up {directory.name} (once; again only when dependencies change)", flush=True)
    if not python.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        except subprocess.CalledProcessError:
            sys.exit("no virtual environment can be made: on Debian, install python3-venv")
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    versions = ("--constraint", ROOT / "constraints.txt")
    subprocess.run([*pip, *versions, "--editable", f"{ROOT}[{EXTRAS}]"], check=True)
    stamp.write_text(wanted)


if __name__ == "__main__":
    main()
