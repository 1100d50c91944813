"""Settles how Hypothesis looks for examples, how Spark is started, and that all ends with a run."""

import os
import sys
from pathlib import Path

import keeper
from hypothesis import settings
from spark_archive import SHORT_LIVED, java_options

from examples import USUAL

pytest_plugins = ("lanes", "spark_session", "timing")

keeper.keep()

# The same examples every time, so that a change is judged by itself; `make fuzz` has others in
# every run, and prints how to repeat a failure. A busy machine is no reason to fail.
settings.register_profile("upriver", deadline=None, derandomize=True, max_examples=USUAL)
settings.register_profile("fuzz", deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "upriver"))

# Spark lives for seconds in most tests, so every process that starts it has Java start fast.
os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options(Path(sys.prefix) / "spark.jsa"))
os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIVED)
