"""The client's side of SCRAM, against an independent server and against nonsense."""

from __future__ import annotations

import pytest
from scramp import ScramMechanism

from upriver.session.scram import SCRAM_DIGESTS, ScramClient


@pytest.mark.parametrize("mechanism", SCRAM_DIGESTS)
def test_scram_with_an_independent_server(mechanism: str) -> None:
    standard = ScramMechanism(mechanism.replace("SHA", "SHA-"))
    verifier = standard.make_auth_info("pencil", iteration_count=4096)
    server = standard.make_server(lambda name: verifier if name == "a,b=c" else None)
    client = ScramClient(mechanism, "a,b=c", "pencil")
    server.set_client_first(client.first().decode())
    server.set_client_final(client.answer(server.get_server_first().encode()).decode())
    client.check(server.get_server_final().encode())
    with pytest.raises(ValueError, match="does not know the password"):
        client.check(b"v=AAAA")


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=AAAA,i=4096",
        b"r=mine,s=AAAA,i=4096",
        b"r=mine+,s=,i=4096",
        b"r=mine+,s=!,i=4096",
        b"r=mine+,s=AAAA,i=0",
        b"r=mine+,s=AAAA,i=99999999999",
        b"r=mine+,s=AAAA,i=x",
        b"\xff",
    ],
)
def test_scram_with_a_server_that_breaks_the_rules(challenge: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        ScramClient("SCRAM-SHA512", "me", "pencil", nonce="mine").answer(challenge)
