"""Transport: addresses, credentials, and the blocking and asyncio connections to nodes."""
