"""The arguments and results of the tools that read a registry, which `treaty mcp` and a registry serve alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from .quoting import line
from .tool import Arguments

MAX_RESULTS = 50


class SearchArguments(Arguments, frozen=True):
    words: str
    topic: str = ""
    limit: int = 10


class FoundProtocol(msgspec.Struct, frozen=True):
    uri: str
    topic: str
    title: str
    summary: str
    hash: str
    publisher: str
    status: str
    election: str | None


class FoundProtocols(msgspec.Struct, frozen=True):
    protocols: list[FoundProtocol]


class NameArguments(Arguments, frozen=True):
    name: str


class Meaning(msgspec.Struct, frozen=True):
    uri: str
    hash: str
    by: str
    verified: bool


class Meanings(msgspec.Struct, frozen=True):
    matches: list[Meaning]


class ReadArguments(Arguments, frozen=True):
    uri: str
    begin: int = 0


class TopicArguments(Arguments, frozen=True):
    topic: str


class TopicMember(msgspec.Struct, frozen=True):
    uri: str
    hash: str
    publisher: str
    state: str


class Topic(msgspec.Struct, frozen=True):
    topic: str
    consensus: str | None
    epoch: int | None
    protocols: list[TopicMember]


def search_limit(arguments: SearchArguments) -> int:
    """Return how many results a search has."""
    return max(1, min(arguments.limit, MAX_RESULTS))


def found_protocols(listed: Iterable[Any]) -> FoundProtocols:
    """Return the entries of a list, as a registry or its client has them, with their texts on one line each."""
    return FoundProtocols([_found(one) for one in listed])


def _found(found: Any) -> FoundProtocol:
    return FoundProtocol(
        line(found.uri),
        line(found.topic),
        line(found.title),
        line(found.summary),
        line(found.hash),
        line(found.publisher),
        line(found.status),
        found.election,
    )
