"""Batches of a bucket: offsets, planning, and reading a planned range as rows of Arrow."""
