"""Options of object stores: from the environment and from the caller, under any of their names."""

from __future__ import annotations

import os
from typing import Any

import pytest

from upriver.consumer.groups.object_store import ObjectGroupStore
from upriver.errors import ConfigError
from upriver.files.object_stores import is_object_store, open_store, store_options

S3 = "s3://bucket/groups"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("environ", "options", "chosen"),
    [
        ({"AWS_REGION": "x", "AZURE_STORAGE_TOKEN": "y", "AWS_EMPTY": "z", "HOME": "h"}, {}, ["x"]),
        ({"AWS_REGION": ""}, {}, []),
        ({"AWS_REGION": "x"}, {"region": "y"}, ["y"]),
        ({"AWS_REGION": "x"}, {"AWS_REGION": "y"}, ["y"]),
        ({"AWS_REGION": "x"}, {"aws_region": "y"}, ["y"]),
        ({"AWS_ENDPOINT": "x", "AWS_ENDPOINT_URL": "y"}, {}, ["y"]),
        ({"AWS_ENDPOINT_URL": "x"}, {"endpoint": "y"}, ["y"]),
        ({"AWS_ENDPOINT_URL": "x"}, {"azure_storage_endpoint": "y"}, ["x", "y"]),
    ],
)
def test_an_option_wins_over_a_variable_by_any_of_its_names(
    environ: dict[str, str], options: dict[str, str], chosen: list[str]
) -> None:
    found = store_options(S3, options, environ)
    assert sorted(found.values()) == chosen
    open_store(S3, found)


def test_variables_of_azure_have_several_names_too() -> None:
    environ = {"AZURE_STORAGE_CLIENT_ID": "x", "AZURE_CLIENT_ID": "y", "AWS_REGION": "z"}
    found = store_options("az://container/path", {"client_id": "w"}, environ)
    assert found == {"client_id": "w"}


def config(**options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    store: Any = ObjectGroupStore(S3, **options)._store
    return dict(store.config), dict(store.client_options)


def test_a_group_takes_the_options_and_variables_that_tables_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_REGION", "here")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    store, client = config()
    assert (store["region"], store["endpoint"]) == ("here", "http://127.0.0.1:1")
    assert client == {"timeout": "5s"}
    store, client = config(
        region="there", allow_http=True, virtual_hosted_style_request=False, timeout="3s"
    )
    assert (store["region"], store["virtual_hosted_style_request"]) == ("there", "false")
    assert client == {"timeout": "3s", "allow_http": "true"}
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert config()[1]["allow_http"] == "true"


def test_what_is_no_plain_value_is_handed_to_the_store() -> None:
    def credentials() -> Any:
        raise AssertionError("nothing was asked of the store")

    store: Any = ObjectGroupStore(S3, region="x", credential_provider=credentials)._store
    assert store.credential_provider is credentials


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("ftp://somewhere", {}, "'ftp://somewhere' is no object store; its address begins with"),
        ("s3://", {}, "is no object store"),
        (S3, {"nonsense": "x"}, f"{S3} cannot be used: Configuration key: 'nonsense'"),
    ],
)
def test_an_address_or_option_that_makes_no_sense(
    url: str, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        ObjectGroupStore(url, **options)


def test_which_addresses_are_object_stores() -> None:
    for url in ("s3://b", "s3a://b/p", "az://c/p", "abfss://c@a.dfs.core.windows.net/p", "gs://b"):
        assert is_object_store(url)
    for url in ("/a/path", "s3:/b", "s3:///", "http://b/p"):
        assert not is_object_store(url)
