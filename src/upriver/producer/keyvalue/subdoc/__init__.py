"""Sub-document commands: paths into JSON documents and their attributes."""
