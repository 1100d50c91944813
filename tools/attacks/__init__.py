"""The attacks of ``tools/attack.py``: on a server's loop and memory, on clusters, on clients."""
