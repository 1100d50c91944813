"""The source ``dcp``: offsets, planning in the driver, and reading in tasks."""
