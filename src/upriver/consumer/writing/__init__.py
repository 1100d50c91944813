"""Writing: edits of single documents, and the writer that pipelines them."""
