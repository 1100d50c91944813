"""Sans-I/O protocol logic of consumer and producer: handshake, streams, flow control, keepalive."""
