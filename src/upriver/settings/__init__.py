"""The table of settings from which Spark options, pipeline settings and flags are generated."""
