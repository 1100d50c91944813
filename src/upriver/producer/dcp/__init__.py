"""DCP streams: sent by this server as a producer, or received by it as a replica."""
