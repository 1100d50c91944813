"""Builds the optional accelerator of `upriver.wire.columns`; everything else is in pyproject.toml.

Where it cannot be built the package is complete without it, only slower at that one task.
``UPRIVER_BUILD`` decides: ``pure`` leaves it out, and the wheel fits every machine; ``c`` makes it
an error if it cannot be built; unset builds it where that is possible.
"""

import os

from setuptools import Extension, setup

VARIABLE = "UPRIVER_BUILD"

wanted = os.environ.get(VARIABLE, "")
if wanted not in ("", "c", "pure"):
    raise SystemExit(f"{VARIABLE} is {wanted!r}; it can be 'c', 'pure' or unset")

if wanted == "pure":
    setup()
else:
    setup(
        ext_modules=[
            Extension(
                "upriver.wire.columns._speedups",
                ["src/upriver/wire/columns/_speedups.c", "src/upriver/wire/columns/_select.c"],
                depends=["src/upriver/wire/columns/_frames.h"],
                define_macros=[("Py_LIMITED_API", "0x030B0000")],
                py_limited_api=True,
                optional=wanted != "c",
            )
        ],
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
