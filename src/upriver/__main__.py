"""``python -m upriver`` is the command line."""

from .cli import run

run()
