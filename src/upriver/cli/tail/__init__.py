"""Parts of ``upriver tail``: filters, formats, the main loop and the status line."""
