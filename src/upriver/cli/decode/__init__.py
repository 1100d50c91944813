"""Parts of ``upriver decode``: packets from captures and from text."""
