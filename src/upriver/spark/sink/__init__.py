"""The sink ``dcp``: rows of DataFrames become edits of documents."""
