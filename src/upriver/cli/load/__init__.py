"""Parts of ``upriver load``: sources of documents, and their writing."""
