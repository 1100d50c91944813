"""Upkeep of tables: compaction, retention, and both by hand."""
