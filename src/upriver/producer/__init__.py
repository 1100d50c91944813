"""The server: sockets, streams, the key-value front end, authentication, statistics."""
