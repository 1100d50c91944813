"""What names a bucket and its nodes, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.consumer.transport.connection_string import Address, Source
from upriver.errors import ConfigError


def test_one_host() -> None:
    assert Source.parse("couchbase://h/b") == Source((Address("h", 11210),), "b")
    assert Source.parse("couchbase://h:1/b") == Source((Address("h", 1),), "b")
    ipv6 = Source.parse("couchbases://[::1]/a%20b")
    assert ipv6 == Source((Address("::1", 11207),), "a b", tls=True)
    assert (ipv6.host, ipv6.port) == ("::1", 11207)


def test_several_hosts() -> None:
    source = Source.parse("COUCHBASES://One.example,[fe80::1]:7,10.0.0.2:8/b/")
    assert source.hosts == (
        Address("one.example", 11207),
        Address("fe80::1", 7),
        Address("10.0.0.2", 8),
    )
    assert str(source) == "couchbases://one.example:11207,[fe80::1]:7,10.0.0.2:8/b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("localhost", "is no connection string"),
        ("http://localhost/b", "is no connection string"),
        ("couchbase:///b", "is no connection string"),
        ("couchbase://h", "names no bucket"),
        ("couchbase://h/", "names no bucket"),
        ("couchbase://h/a/b", "names no bucket"),
        ("couchbase://h/a%2Fb", "names no bucket"),
        ("couchbase://h/%ff", "can't decode"),
        ("couchbase://h/\ud800", "can't encode"),
        ("couchbase://h:0/b", "ports are 1 to 65535, not 0"),
        ("couchbase://h:65536/b", "ports are 1 to 65535, not 65536"),
        ("couchbase://h:" + "9" * 10_000 + "/b", "ports are 1 to 65535"),
        ("couchbase://h:x/b", "'h:x' is no host with a port"),
        ("couchbase://h:/b", "'h:' is no host with a port"),
        ("couchbase://h:\u0661/b", "is no host with a port"),
        ("couchbase://::1/b", "an IPv6 address needs brackets"),
        ("couchbase://[::1/b", "is no host with a port"),
        ("couchbase://[nonsense]/b", "nonsense"),
        ("couchbase://h,/b", "'' is no host with a port"),
        ("couchbase://,h/b", "'' is no host with a port"),
        ("couchbase://h i/b", "'h i' is no host with a port"),
        ("couchbase://h,g,H:11210/b", "names a host twice"),
        ("couchbase://h/b?ssl=no", "is no connection string"),
        ("couchbase://h/b#top", "is no connection string"),
    ],
)
def test_what_is_no_source_is_told_the_shape_of_one(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Source.parse(text)
    assert said in str(caught.value)
    assert "it must be couchbase://HOST[:PORT][,HOST[:PORT]...]/BUCKET" in str(caught.value)


@pytest.mark.parametrize("text", ["couchbase://me:secret@h/b", "couchbase://me:se/secret@h/b"])
def test_a_password_in_a_source_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match="has a user or password") as caught:
        Source.parse(text)
    assert "secret" not in str(caught.value)


def test_a_bucket_has_a_longest_name() -> None:
    with pytest.raises(ConfigError, match="more than 250 bytes"):
        Source.parse(f"couchbase://h/{'b' * 251}")


hosts = st.ip_addresses().map(str) | st.from_regex(
    r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True
)
addresses = st.builds(Address, hosts, st.integers(1, 65_535))
sources = st.builds(
    Source,
    st.lists(addresses, min_size=1, max_size=5, unique=True).map(tuple),
    st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1).filter(
        lambda name: len(name.encode()) <= 250
    ),
    st.booleans(),
)


@given(sources)
def test_a_source_reads_what_it_writes(source: Source) -> None:
    assert Source.parse(str(source)) == source


@given(st.text(max_size=60), st.sampled_from(["", "couchbase://", "couchbases://h,"]))
def test_any_text_is_a_source_or_is_refused(text: str, prefix: str) -> None:
    try:
        source = Source.parse(prefix + text)
    except ConfigError:
        return
    assert Source.parse(str(source)) == source
