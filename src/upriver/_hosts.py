"""What can be said of a host by its name alone."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach what listens on a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
