"""Builds the optional accelerator of `upriver.wire.columns`; everything else is in pyproject.toml.

Where it cannot be built the package is complete without it, only slower at that one task.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "upriver.wire.columns._speedups",
            ["src/upriver/wire/columns/_speedups.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
