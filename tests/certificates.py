"""Certificates for tests of TLS: an authority, and a server's at 127.0.0.1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificates:
    """Where the files are."""

    authority: Path
    certificate: Path
    key: Path


def write_certificates(directory: Path) -> Certificates:
    files = Certificates(
        directory / "authority.pem", directory / "certificate.pem", directory / "key.pem"
    )
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(files.authority)
    issued.cert_chain_pems[0].write_to_path(files.certificate)
    issued.private_key_pem.write_to_path(files.key)
    return files
