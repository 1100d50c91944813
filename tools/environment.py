"""Makes the project's virtual environment, and renews it when its dependencies changed.

    python3 tools/environment.py DIRECTORY [EXTRAS]

EXTRAS are those of pyproject.toml to install, by default all that the project's own commands need.
Needs nothing but Python 3.11. Run by the Makefile before every command; when nothing changed it
only compares one hash. Installs with uv, which takes a third of pip's time, and with pip where uv
cannot be had.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
EVERYTHING = "dev,all"
#: Spark comes as 400 MB of sources: half of the time goes into compressing the wheel made of them.
NOT_COMPRESSED = ("--config-settings-package", "pyspark:--build-option=--compression=stored")
#: What the installed environment depends on; the package itself is installed in place.
INPUTS = (
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
    "src/upriver/wire/columns/_speedups.c",
)


def fingerprint(python: Path) -> str:
    digest = hashlib.sha256(f"{python} {ROOT}".encode())
    for name in INPUTS:
        path = ROOT / name
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


def make(
    directory: Path,
    extras: str,
    *more: str,
    interpreter: Path = Path(sys.executable),
    constraints: str = "",
) -> Path:
    """The interpreter of an environment with the project in it, which is made if there is none.

    ``more`` are other packages to install, and ``constraints`` is what constraints.txt says unless
    it is given.
    """
    stamp = directory / ".upriver-installed"
    mark = f"{fingerprint(interpreter)} {constraints} {more}"
    installed = stamp.read_text() if stamp.exists() else ""
    python = directory / "bin" / "python"
    if installed in (f"{mark} {extras}", f"{mark} {EVERYTHING}"):
        return python
    print(f"setting up {directory.name} (once; again only when dependencies change)", flush=True)
    began = time.monotonic()
    if not python.exists():
        try:
            subprocess.run([interpreter, "-m", "venv", directory], check=True)
        except subprocess.CalledProcessError:
            sys.exit("no virtual environment can be made: on Debian, install python3-venv")
    limits = CONSTRAINTS
    if constraints:
        limits = directory / CONSTRAINTS.name
        limits.write_text(constraints)
    install(python, "--constraint", str(limits), "--editable", f"{ROOT}[{extras}]", *more)
    stamp.write_text(f"{mark} {extras}")
    print(f"{directory.name} is ready, after {time.monotonic() - began:.0f} s", flush=True)
    return python


def install(python: Path, *wanted: str) -> None:
    """Installs packages; what happens is shown, because it can take minutes."""
    print(f"installing {wanted[-1]} and what it needs", flush=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install"]
    uv = python.with_name("uv")
    got_uv = uv.exists() or subprocess.run([*pip, "--quiet", "uv"]).returncode == 0
    fast: list[str | Path] = [uv, "pip", "install", "--python", python, *NOT_COMPRESSED, *wanted]
    # uv does not know pip's configuration: where only that leads to packages, pip has to do it.
    if got_uv and not subprocess.run(fast).returncode:
        return
    print("uv cannot install it here; pip does, which takes longer", flush=True)
    subprocess.run([*pip, "--progress-bar", "off", *wanted], check=True)


def main() -> None:
    if sys.version_info < (3, 11):
        sys.exit(f"Python 3.11 or later is needed, this is {sys.version.split()[0]}: set PYTHON=")
    make(Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else EVERYTHING)


if __name__ == "__main__":
    main()
