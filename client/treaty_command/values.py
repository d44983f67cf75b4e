"""The values that a shell completes: the protocols, topics, DIDs and registries that the files of a home name.

No registry is asked, and nothing is verified. A file that cannot be read has no values: cyclopts drops the error.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import Parameter

from treaty_io.home import default_home

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext


def uris(context: CompletionContext) -> list[str]:
    """Return the protocols that were fetched."""
    locked = _read(context, "treaty.lock", "protocols")
    return [f"{line}/{version}" for line, entry in locked.items() for version in entry["versions"]]


def topics(context: CompletionContext) -> list[str]:
    """Return the topics that were asked for."""
    return list(dict.fromkeys(entry["topic"] for entry in _read(context, "topics.json", "topics")))


def dids(context: CompletionContext) -> list[str]:
    """Return the publishers of the policy, and of the protocols that were fetched."""
    locked = _read(context, "treaty.lock", "protocols").values()
    return list(dict.fromkeys([*_read(context, "policy.toml", "publishers"), *(entry["publisher"] for entry in locked)]))


def names(context: CompletionContext) -> list[str]:
    """Return protocols, topics and DIDs."""
    return [*uris(context), *topics(context), *dids(context)]


def origins(context: CompletionContext) -> list[str]:
    """Return the trusted registries."""
    return list(_read(context, "registries.json", "registries"))


def _read(context: CompletionContext, file: str, member: str) -> Any:
    home = context.get("home")
    path = (Path(home.raw) if home and home.raw else default_home()) / file
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    return (tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)).get(member, {})


Uri: TypeAlias = Annotated[str, Parameter(completer=uris)]
Topic: TypeAlias = Annotated[str, Parameter(completer=topics)]
DidText: TypeAlias = Annotated[str, Parameter(completer=dids)]
AgentDid: TypeAlias = Annotated[str | None, Parameter(completer=dids, help="The DID of the agent. Default: this one.")]
Name: TypeAlias = Annotated[str, Parameter(completer=names)]
Origin: TypeAlias = Annotated[str, Parameter(completer=origins)]
_ACCEPT = "A DID whose handlers to accept, besides those of the policy. May be repeated."
Publishers: TypeAlias = Annotated[tuple[str, ...], Parameter(completer=dids, help=_ACCEPT)]
_STAMP = "URL#KEY of a witness that stamps the statement, as of `treaty vote`. May be repeated."
Via: TypeAlias = Annotated[tuple[str, ...], Parameter(help=_STAMP)]

Oidc = Annotated[
    bool, Parameter(negative="", help="Sign as the GitHub account for which this workflow runs, with a key that ends with it.")
]
