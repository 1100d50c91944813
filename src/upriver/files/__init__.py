"""Files in a directory or in an object store, through one interface."""
