"""The client's side of SCRAM, against an independent server and against nonsense."""

from __future__ import annotations

import pytest
from scramp import ScramMechanism

from upriver.session.sasl_client import MAX_ITERATIONS, SCRAM_DIGESTS, ScramClient


@pytest.mark.parametrize("mechanism", SCRAM_DIGESTS)
def test_scram_with_an_independent_server(mechanism: str) -> None:
    standard = ScramMechanism(mechanism.replace("SHA", "SHA-"))
    verifier = standard.make_auth_info("pencil", iteration_count=4096)
    server = standard.make_server(lambda name: verifier if name == "a,b=c" else None)
    client = ScramClient(mechanism, "a,b=c", "pencil")
    server.set_client_first(client.first().decode())
    challenge = server.get_server_first().encode()
    server.set_client_final(client.answer(challenge, client.hashing(challenge)()).decode())
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
        ScramClient("SCRAM-SHA512", "me", "pencil", nonce="mine").hashing(challenge)


def test_a_server_cannot_keep_a_client_busy_with_iterations() -> None:
    client = ScramClient("SCRAM-SHA512", "me", "pencil", nonce="mine")
    client.hashing(b"r=mine+,s=AAAA,i=%d" % MAX_ITERATIONS)  # which nobody has to do here
    with pytest.raises(ValueError, match=f"wants {MAX_ITERATIONS + 1} iterations"):
        client.hashing(b"r=mine+,s=AAAA,i=%d" % (MAX_ITERATIONS + 1))
