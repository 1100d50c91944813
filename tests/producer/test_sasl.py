"""Authentication from the client's side: published exchanges, an independent client, nonsense."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest
import scramp
from hypothesis import given, settings
from hypothesis import strategies as st

from upriver.producer.bootstrap.sasl import (
    MAX_NONCE,
    MAX_PAYLOAD,
    Continue,
    Failure,
    SaslExchange,
    SaslOutcome,
    Success,
    mechanisms,
)
from upriver.producer.bootstrap.users import (
    DEVELOPMENT_PASSWORD,
    MIN_ITERATIONS,
    Digest,
    User,
    Users,
    Verifier,
)

SCRAM = {
    "SCRAM-SHA512": ("SCRAM-SHA-512", Digest.SHA512),
    "SCRAM-SHA256": ("SCRAM-SHA-256", Digest.SHA256),
    "SCRAM-SHA1": ("SCRAM-SHA-1", Digest.SHA1),
}
NAMES = {"user": "pencil", "a,b=c": "comma", "jürgen": "pässword"}
USERS = Users()
for _name, _password in NAMES.items():
    USERS.add(_name, _password, iterations=MIN_ITERATIONS)


def answer(
    client_first: bytes, challenge: bytes, password: str, digest: Digest = Digest.SHA512
) -> bytes:
    """What a client answers that is less strict than the RFC about nonces."""
    binding, acting_for, bare = client_first.split(b",", 2)
    fields = dict(field.split(b"=", 1) for field in challenge.split(b","))
    salted = hashlib.pbkdf2_hmac(
        digest, password.encode(), b64decode(fields[b"s"]), int(fields[b"i"])
    )
    client_key = hmac.digest(salted, b"Client Key", digest)
    without_proof = b"c=" + b64encode(binding + b"," + acting_for + b",") + b",r=" + fields[b"r"]
    signature = hmac.digest(
        hashlib.new(digest, client_key).digest(),
        b",".join((bare, challenge, without_proof)),
        digest,
    )
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return without_proof + b",p=" + b64encode(proof)


def challenge_of(outcome: SaslOutcome) -> bytes:
    assert isinstance(outcome, Continue), outcome
    return outcome.challenge


def parts(challenge: bytes) -> tuple[int, int]:
    """What an attacker can compare: the length of the salt, and the iterations."""
    fields = dict(field.split(b"=", 1) for field in challenge.split(b","))
    return len(b64decode(fields[b"s"])), int(fields[b"i"])


# ---- what is offered ---------------------------------------------------------------------


def test_plain_is_offered_only_where_nobody_listens_in() -> None:
    assert mechanisms(tls=False) == ("SCRAM-SHA512", "SCRAM-SHA256", "SCRAM-SHA1")
    assert mechanisms(tls=True) == (*mechanisms(tls=False), "PLAIN")
    assert mechanisms(tls=False, plain_without_tls=True) == mechanisms(tls=True)


def test_a_mechanism_that_is_not_offered_is_refused() -> None:
    assert isinstance(SaslExchange(USERS).start("PLAIN", b"\0user\0pencil"), Failure)
    assert isinstance(SaslExchange(USERS, tls=True).start("GSSAPI", b""), Failure)


# ---- published exchanges -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "digest", "salt", "client_nonce", "server_nonce", "proof", "signature"),
    [
        pytest.param(
            "SCRAM-SHA1",
            Digest.SHA1,
            "QSXCR+Q6sek8bf92",
            "fyko+d2lbbFgONRv9qkxdawL",
            "3rfcNHYJY1ZVvWVs7j",
            "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            "rmF9pqV8S7suAoZWja4dJRkFsKQ=",
            id="RFC 5802",
        ),
        pytest.param(
            "SCRAM-SHA256",
            Digest.SHA256,
            "W22ZaJ0SNY7soEsUEjb6gQ==",
            "rOprNGfwEbeRWgbNEkqO",
            "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
            id="RFC 7677",
        ),
    ],
)
def test_the_exchanges_that_the_standards_print(
    mechanism: str,
    digest: Digest,
    salt: str,
    client_nonce: str,
    server_nonce: str,
    proof: str,
    signature: str,
) -> None:
    verifier = Verifier.of("pencil", digest, 4096, b64decode(salt))
    users = Users([User("user", {digest: verifier}, frozenset())])
    exchange = SaslExchange(users, nonce=lambda: server_nonce)
    nonce = client_nonce + server_nonce
    first = exchange.start(mechanism, f"n,,n=user,r={client_nonce}".encode())
    assert first == Continue(f"r={nonce},s={salt},i=4096".encode())
    final = exchange.step(f"c=biws,r={nonce},p={proof}".encode())
    assert final == Success("user", f"v={signature}".encode())


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("name", NAMES)
def test_an_independent_client_gets_in_and_believes_the_server(mechanism: str, name: str) -> None:
    client = scramp.ScramClient([SCRAM[mechanism][0]], name, NAMES[name])
    exchange = SaslExchange(USERS)
    first = challenge_of(exchange.start(mechanism, client.get_client_first().encode()))
    client.set_server_first(first.decode())
    final = exchange.step(client.get_client_final().encode())
    assert isinstance(final, Success)
    assert final.user == name
    client.set_server_final(final.payload.decode())


@pytest.mark.parametrize("nonce", ["0x61 0xffffff8e 0xffffffc7", " ", "!#$%&'()*+-./:;<=>?@[~"])
def test_nonces_of_real_clients_have_spaces(nonce: str) -> None:
    first = f"n,,n=user,r={nonce}".encode()
    exchange = SaslExchange(USERS)
    challenge = challenge_of(exchange.start("SCRAM-SHA512", first))
    assert challenge.startswith(f"r={nonce}".encode())
    assert isinstance(exchange.step(answer(first, challenge, "pencil")), Success)


@pytest.mark.parametrize("header", [b"n,,", b"y,,"])
def test_clients_without_channel_binding_may_say_so_in_two_ways(header: bytes) -> None:
    first = header + b"n=user,r=abc"
    exchange = SaslExchange(USERS)
    challenge = challenge_of(exchange.start("SCRAM-SHA512", first))
    assert isinstance(exchange.step(answer(first, challenge, "pencil")), Success)


def test_a_user_may_name_itself_twice_and_send_extensions() -> None:
    first = b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=abc,x=ignored"
    exchange = SaslExchange(USERS)
    challenge = challenge_of(exchange.start("SCRAM-SHA512", first))
    final = exchange.step(answer(first, challenge, "comma"))
    assert isinstance(final, Success)
    assert final.user == "a,b=c"


# ---- PLAIN -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "user"),
    [
        (b"\0user\0pencil", "user"),
        (b"user\0user\0pencil", "user"),
        ("\0jürgen\0pässword".encode(), "jürgen"),
        # the same letters, composed from two code points each
        ("\0ju\u0308rgen\0pa\u0308ssword".encode(), "jürgen"),
    ],
)
def test_plain(payload: bytes, user: str) -> None:
    assert SaslExchange(USERS, tls=True).start("PLAIN", payload) == Success(user)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"user\0pencil",
        b"\0user\0pencil\0",
        b"\0user\0",
        b"\0\0pencil",
        b"\0user\0pencil ",
        b"\0nobody\0pencil",
        b"a,b=c\0user\0pencil",
        b"\0us\x07er\0pencil",
        b"\0user\0\xff",
        b"\0user\0" + b"x" * MAX_PAYLOAD,
        b"\0" + b"u" * 200 + b"\0pencil",
    ],
)
def test_plain_that_is_wrong(payload: bytes) -> None:
    assert isinstance(SaslExchange(USERS, tls=True).start("PLAIN", payload), Failure)


# ---- refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(
    ("name", "reason"), [("user", "wrong password"), ("nobody", "no such user")]
)
def test_a_wrong_password_and_an_unknown_user_differ_only_in_the_log(
    mechanism: str, name: str, reason: str
) -> None:
    first = f"n,,n={name},r=abc".encode()
    exchange = SaslExchange(USERS)
    challenge = challenge_of(exchange.start(mechanism, first))
    assert parts(challenge) == (16, MIN_ITERATIONS)
    final = exchange.step(answer(first, challenge, "wrong", SCRAM[mechanism][1]))
    assert final == Failure(reason, name)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_an_unknown_user_is_asked_the_same_each_time_as_users_are(mechanism: str) -> None:
    def salt(name: str) -> bytes:
        first = f"n,,n={name},r=abc".encode()
        return challenge_of(SaslExchange(USERS).start(mechanism, first)).split(b",")[1]

    assert salt("nobody") == salt("nobody")
    assert len({salt("nobody"), salt("somebody"), salt("user"), salt("a=2Cb=3Dc")}) == 4


def test_a_user_removed_meanwhile_does_not_get_in() -> None:
    users = Users()
    users.add("gone", "secret", iterations=MIN_ITERATIONS)
    first = b"n,,n=gone,r=abc"
    exchange = SaslExchange(users)
    challenge = challenge_of(exchange.start("SCRAM-SHA512", first))
    users.remove("gone")
    final = exchange.step(answer(first, challenge, "secret"))
    assert final == Failure("no such user", "gone")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b",",
        b"n,,",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"n,,n=user,r=",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=us=2cer,r=abc",
        b"n,,n=user=,r=abc",
        b"n,,m=new,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,user,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n=user,r=abc",
        b"n,,n=user,r=a\tb",
        b"n,,n=user,r=\xff",
        "n,,n=user,r=ä".encode(),
        b"n,,n=us\0er,r=abc",
        b"n,,n=" + b"u" * 129 + b",r=abc",
        b"n,,n=user,r=" + b"x" * (MAX_NONCE + 1),
        b"n,,n=user,r=abc,x=" + b"x" * MAX_PAYLOAD,
    ],
)
def test_a_first_message_that_breaks_a_rule(first: bytes) -> None:
    exchange = SaslExchange(USERS)
    assert isinstance(exchange.start("SCRAM-SHA512", first), Failure)
    assert isinstance(exchange.step(b"c=biws,r=abc,p=AAAA"), Failure)


def garbled(final: bytes) -> dict[str, bytes]:
    without_proof, proof = final.split(b",p=")
    channel, nonce = without_proof.split(b",")
    return {
        "empty": b"",
        "without proof": without_proof,
        "empty proof": without_proof + b",p=",
        "short proof": without_proof + b",p=AAAA",
        "another proof": without_proof + b",p=" + b64encode(bytes(64)),
        "not base64": without_proof + b",p=!" + proof,
        "proof not ASCII": without_proof + ",p=ä".encode(),
        "another header": b"c=eSws," + nonce + b",p=" + proof,
        "header not base64": b"c=b," + nonce + b",p=" + proof,
        "nonce cut": channel + b"," + nonce[:-1] + b",p=" + proof,
        "nonce of the client alone": channel + b",r=abc,p=" + proof,
        "only a nonce": nonce + b",p=" + proof,
        "another order": nonce + b"," + channel + b",p=" + proof,
        "something behind": final + b",x=y",
        "an extension that was not signed": without_proof + b",x=y,p=" + proof,
        "not UTF-8": final + b"\xff",
        "very long": final + b"A" * MAX_PAYLOAD,
    }


@pytest.mark.parametrize("how", garbled(b"c=,r=,p="))
def test_a_final_message_that_breaks_a_rule(how: str) -> None:
    first = b"n,,n=user,r=abc"
    exchange = SaslExchange(USERS)
    final = answer(first, challenge_of(exchange.start("SCRAM-SHA512", first)), "pencil")
    assert isinstance(exchange.step(garbled(final)[how]), Failure)
    assert isinstance(exchange.step(final), Failure)  # there is no second attempt


def test_a_recorded_exchange_cannot_be_played_again() -> None:
    first = b"n,,n=user,r=abc"
    exchange = SaslExchange(USERS)
    final = answer(first, challenge_of(exchange.start("SCRAM-SHA512", first)), "pencil")
    assert isinstance(exchange.step(final), Success)
    assert isinstance(exchange.step(final), Failure)
    for replay in (exchange, SaslExchange(USERS)):
        assert isinstance(replay.start("SCRAM-SHA512", first), Continue)
        assert isinstance(replay.step(final), Failure)


def test_starting_again_forgets_what_was() -> None:
    first = b"n,,n=user,r=abc"
    exchange = SaslExchange(USERS)
    old = answer(first, challenge_of(exchange.start("SCRAM-SHA512", first)), "pencil")
    new = answer(first, challenge_of(exchange.start("SCRAM-SHA512", first)), "pencil")
    assert isinstance(exchange.step(old), Failure)
    assert isinstance(exchange.step(new), Failure)
    new = answer(first, challenge_of(exchange.start("SCRAM-SHA512", first)), "pencil")
    assert isinstance(exchange.step(new), Success)


def test_a_step_before_the_start() -> None:
    assert SaslExchange(USERS).step(b"c=biws,r=abc,p=AAAA") == Failure(
        "an answer without a challenge"
    )


# ---- without users -----------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", SCRAM)
def test_without_users_any_password_does(mechanism: str) -> None:
    first = b"n,,n=anybody,r=abc"
    exchange = SaslExchange(Users.unrestricted())
    challenge = challenge_of(exchange.start(mechanism, first))
    final = exchange.step(answer(first, challenge, "anything", SCRAM[mechanism][1]))
    assert isinstance(final, Success)
    assert final.user == "anybody"


@pytest.mark.parametrize("mechanism", SCRAM)
def test_without_users_a_client_that_checks_the_server_has_a_password_too(mechanism: str) -> None:
    client = scramp.ScramClient([SCRAM[mechanism][0]], "anybody", DEVELOPMENT_PASSWORD)
    exchange = SaslExchange(Users.unrestricted())
    first = challenge_of(exchange.start(mechanism, client.get_client_first().encode()))
    client.set_server_first(first.decode())
    final = exchange.step(client.get_client_final().encode())
    assert isinstance(final, Success)
    client.set_server_final(final.payload.decode())


def test_without_users_plain_takes_any_password_but_no_nonsense() -> None:
    exchange = SaslExchange(Users.unrestricted(), tls=True)
    assert exchange.start("PLAIN", b"\0anybody\0anything") == Success("anybody")
    assert isinstance(exchange.start("PLAIN", b"nonsense"), Failure)


# ---- anything ----------------------------------------------------------------------------

PIECES = st.sampled_from(
    [b"n", b"y", b"p", b",", b"=", b"n=user", b"r=", b"a=", b"m=", b"c=biws", b"p=", b"=2C", b"\0"]
)
MESSAGES = st.one_of(
    st.binary(max_size=80),
    st.lists(st.one_of(PIECES, st.binary(max_size=4)), max_size=12).map(b"".join),
    st.builds(lambda tail: b"n,,n=user,r=abc" + tail, st.binary(max_size=8)),
)


@settings(deadline=None)
@given(
    mechanism=st.sampled_from([*SCRAM, "PLAIN"]) | st.text(max_size=12),
    messages=st.lists(MESSAGES, min_size=1, max_size=3),
)
def test_whatever_comes_it_fails_or_goes_on(mechanism: str, messages: list[bytes]) -> None:
    exchange = SaslExchange(USERS, tls=True)
    outcomes = [exchange.start(mechanism, messages[0])]
    outcomes += [exchange.step(message) for message in messages[1:]]
    assert all(isinstance(outcome, Continue | Failure) for outcome in outcomes)


@settings(deadline=None)
@given(final=MESSAGES)
def test_whatever_comes_as_an_answer_fails(final: bytes) -> None:
    exchange = SaslExchange(USERS, nonce=lambda: "def")
    begun = b"c=biws,r=abcdef,"
    for message in (final, begun + final, begun + b"p=" + final, begun + b"p=" + b64encode(final)):
        assert isinstance(exchange.start("SCRAM-SHA256", b"n,,n=user,r=abc"), Continue)
        assert isinstance(exchange.step(message), Failure)
