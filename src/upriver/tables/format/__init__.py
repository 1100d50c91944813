"""The files of a Delta table: log, checkpoints, data files, vectors, key index."""
