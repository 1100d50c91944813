"""``python -m upriver`` is the command line."""

from .cli.main import main

main()
