"""The commands of ``upriver``: one module per command, loaded when it is run."""
