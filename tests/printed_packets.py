"""The packets that the five documents print, by document and number."""

from __future__ import annotations

import json
from pathlib import Path

_VECTORS = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())["seed"]
#: As they are printed.
PRINTED = {(x["draft"], x["n"]): bytes.fromhex(x["literal"]) for x in _VECTORS}
#: With their lengths put right.
RIGHT = {(x["draft"], x["n"]): bytes.fromhex(x["corrected"]) for x in _VECTORS if x["corrected"]}
