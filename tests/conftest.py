"""Makes the helpers beside the tests importable, and settles how Hypothesis looks for examples."""

import os
import sys
from pathlib import Path

from hypothesis import settings

pytest_plugins = ("lanes",)

sys.path.insert(0, str(Path(__file__).parent))
for room in ("wire", "producer", "store", "consumer", "spark/tables"):
    sys.path.insert(0, str(Path(__file__).parent / room))

# The same examples every time, so that a change is judged by itself; `make fuzz` has others in
# every run, and prints how to repeat a failure. A busy machine is no reason to fail.
settings.register_profile("upriver", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "upriver"))
