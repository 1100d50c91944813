"""Object stores (S3, Azure, Google Cloud Storage): addresses, options, create-only puts, errors.

    s3://bucket/path, az://container/path, abfss://container@account.dfs.core.windows.net/path,
    gs://bucket/path

Options and credentials have the names that `obstore` and `deltalake` give them
(``AWS_ENDPOINT_URL``, ``region``, ``AZURE_STORAGE_ACCOUNT_KEY``, ``timeout``, ...). They come from
the environment and from the caller, who wins. Groups and tables use this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .._extras import extra

with extra("objects"):
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError
    from obstore.store import from_url

#: Its options are typed for each kind of store, and ours are of any.
_from_url: Any = from_url

#: The kinds of addresses that are understood.
SCHEMES: Final = frozenset({"s3", "s3a", "az", "azure", "adl", "abfs", "abfss", "gs"})
#: Variables of the environment that a store of a kind is configured by.
_VARIABLES: Final = {
    "AWS_": frozenset(
        {
            *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"),
            *("AWS_DEFAULT_REGION", "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP"),
            *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
            *("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
            *("AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
            *("AWS_SKIP_SIGNATURE", "AWS_UNSIGNED_PAYLOAD", "AWS_REQUEST_PAYER"),
        }
    ),
    "AZURE_": frozenset(
        {
            *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY"),
            *("AZURE_STORAGE_TOKEN", "AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET"),
            *("AZURE_STORAGE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"),
            *("AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_STORAGE_ENDPOINT"),
            *("AZURE_STORAGE_USE_EMULATOR", "AZURE_USE_AZURE_CLI", "AZURE_ALLOW_HTTP"),
        }
    ),
    "GOOGLE_": frozenset(
        {
            *("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
            *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
        }
    ),
}
#: Options that belong to the HTTP client, and not to one kind of store.
_CLIENT: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "timeout",
        "user_agent",
    }
)
#: Options that only `deltalake` knows.
_DELTALAKE_ONLY: Final = frozenset(
    {"aws_s3_allow_unsafe_rename", "aws_s3_locking_provider", "allow_unsafe_rename"}
)
#: Most characters of what a store said, in an error message.
_SHOWN: Final = 500


def is_object_store(url: str) -> bool:
    """Whether it is the address of an object store, with more than a scheme."""
    scheme, separator, rest = url.partition("://")
    return bool(separator) and scheme in SCHEMES and bool(rest.strip("/"))


def store_options(
    url: str, options: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str]:
    """The options, over those variables of the environment that are for the store's kind.

    One name is left of those that mean the same, because stores refuse an option that comes twice.
    """
    known = _VARIABLES[_prefix(url)]
    variables = {name: environ[name] for name in sorted(known) if environ.get(name)}
    chosen: dict[str, tuple[str, str]] = {}
    for name, value in (*variables.items(), *options.items()):
        chosen[_meaning(name, url)] = name, value
    return dict(chosen.values())


def _meaning(name: str, url: str) -> str:
    """The same for all names of an option: ``AWS_ENDPOINT_URL`` and ``endpoint``."""
    plain = name.lower()
    if not _belongs(plain, url):
        return plain
    for prefix in ("aws_", "azure_storage_", "azure_", "google_"):
        plain = plain.removeprefix(prefix)
    return "endpoint" if plain == "endpoint_url" else plain


def open_store(url: str, options: Mapping[str, str], *, timeout: str = "", **arguments: Any) -> Any:
    """A store of `obstore`; ValueError with the reason if the address or an option is wrong.

    ``timeout`` counts unless the options have one. ``arguments`` are passed to `obstore` unchanged.
    """
    config: dict[str, Any] = {}
    client: dict[str, Any] = {"timeout": timeout} if timeout else {}
    for name, value in options.items():
        plain = name.lower()
        short = plain.removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if short in _CLIENT:
            client[short] = value.lower() == "true" if value.lower() in ("true", "false") else value
        elif plain not in _DELTALAKE_ONLY and _belongs(plain, url):
            config[plain] = value
    try:
        return _from_url(url, config=config, client_options=client, **arguments)
    except (BaseError, ValueError, TypeError) as problem:
        raise ValueError(said(problem)) from None


def put_new(store: Any, path: str, data: bytes) -> bool:
    """Creates an object; False if the store answers that there is one."""
    try:
        obstore.put(store, path, data, mode="create")
    except AlreadyExistsError:
        return False
    return True


def said(problem: Exception) -> str:
    """The first line of a store's error: the others are for its developers."""
    lines = (line for line in str(problem).splitlines() if line.strip())
    return next(lines, type(problem).__name__)[:_SHOWN]


def _belongs(name: str, url: str) -> bool:
    """Whether an option is of the store's own kind: others' are refused by it."""
    others = [prefix.lower() for prefix in _VARIABLES if prefix != _prefix(url)]
    return not name.startswith(tuple(others))


def _prefix(url: str) -> str:
    """What the names of a store's variables begin with."""
    kind = url.partition("://")[0]
    return {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_"}.get(kind, "AZURE_")
