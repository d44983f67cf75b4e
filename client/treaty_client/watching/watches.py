"""The watches of an owner: DIDs, namespaces, topics, handlers and the constitution, from options or a TOML file.

    dids = ["did:wba:example.com"]
    namespaces = ["example.com"]
    topics = ["commerce/product-info"]
    handlers = ["https://registry.example/protocols/example.com/shop/1.0", "SHA-256 of a wheel"]
    constitution = true
    expected = ["other-home/signed.txt"]          files of statement ids, relative to this file

    [[webhooks]]
    url = "https://alarm.example/treaty"
    secret_file = "webhook.secret"

docs/guides/watching.md explains each watch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from treaty_consensus.canonical import parse_digest
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, TreatyError
from treaty_consensus.events import CONSTITUTION, LogEvent, Subject
from treaty_consensus.protocol import check_topic, parse_namespace, parse_protocol_uri
from treaty_io.codes import WatchCode

WatchKind: TypeAlias = Literal["did", "namespace", "topic", "handler", "constitution"]

MAX_FILE = 64 * 1024
# Each watch has a cursor in the state file, which is written after every round.
MAX_WATCHES = 1_024


@dataclass(frozen=True)
class Watch:
    """One watched name. `str()` gives its key in the state file."""

    kind: WatchKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()

    @cached_property
    def subjects(self) -> frozenset[Subject]:
        """The subjects that it covers. A DID covers its own namespace, and a domain the namespaces below it."""
        match self.kind:
            case "did":
                namespace = _namespace_of(self.name)
                return frozenset([Subject("did", self.name), *([Subject("namespace", namespace)] if namespace else [])])
            case "namespace":
                return frozenset([Subject("namespace", self.name), Subject("domain", self.name)])
            case "topic":
                return frozenset([Subject("topic", self.name)])
            case "constitution":
                return frozenset([CONSTITUTION])
        return frozenset([Subject("protocol" if "/" in self.name else "file", self.name)])

    def matches(self, event: LogEvent) -> bool:
        """Return whether a leaf concerns this watch."""
        return not self.subjects.isdisjoint(event.subjects)


@dataclass(frozen=True)
class WebhookAddress:
    """An endpoint, and the file of its secret."""

    url: str
    secret_file: Path


@dataclass(frozen=True)
class WatchList:
    """The watches of one command. `expected`: files of statement ids."""

    watches: tuple[Watch, ...] = ()
    expected: tuple[Path, ...] = ()
    webhooks: tuple[WebhookAddress, ...] = ()

    def __add__(self, other: WatchList) -> WatchList:
        watches = tuple(dict.fromkeys((*self.watches, *other.watches)))
        if len(watches) > MAX_WATCHES:
            raise TooLarge(WatchCode.FILE, f"At most {MAX_WATCHES} names are watched together.")
        return WatchList(watches, (*self.expected, *other.expected), (*self.webhooks, *other.webhooks))


def parse_watches(
    dids: Iterable[str] = (),
    namespaces: Iterable[str] = (),
    topics: Iterable[str] = (),
    handlers: Iterable[str] = (),
    *,
    constitution: bool = False,
) -> WatchList:
    """Check the names. Raises `Malformed` (`did.*`, `protocol.*`, `statement.form`, `canonical.text`)."""
    watches: list[Watch] = []
    for did in dids:
        watches.append(Watch("did", parse_did(did).text))
    for namespace in namespaces:
        watches.append(Watch("namespace", parse_namespace(namespace)))
    for topic in topics:
        check_topic(topic)
        watches.append(Watch("topic", topic))
    watches.extend(Watch("handler", _handler(name)) for name in handlers)
    if constitution:
        watches.append(Watch("constitution", ""))
    return WatchList() + WatchList(tuple(watches))


def _handler(name: str) -> str:
    if "/" not in name:
        return parse_digest(name.removeprefix("sha256:"))
    try:
        parse_protocol_uri(name)
    except TreatyError as error:
        try:
            # All versions of a protocol. A version that exists nowhere completes the form.
            parse_protocol_uri(f"{name}/0")
        except TreatyError:
            raise error from None
    return name


def _namespace_of(did: str) -> str | None:
    try:
        return parse_did(did).namespace
    except Refused:  # it names a port, so it owns none
        return None


class _Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    secret_file: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dids: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    handlers: tuple[str, ...] = ()
    constitution: bool = False
    expected: tuple[str, ...] = ()
    webhooks: tuple[_Webhook, ...] = ()


def read_watch_file(path: Path) -> WatchList:
    """Read a TOML file of watches. Raises `NotFound`, `TooLarge` or `Malformed` (`watch.file`), and as `parse_watches`."""
    try:
        with path.open("rb") as file:
            # One byte more than the cap shows that the file is too large, without reading all of it.
            data = file.read(MAX_FILE + 1)
    except FileNotFoundError as error:
        raise NotFound(WatchCode.FILE, f"There is no {path}.") from error
    if len(data) > MAX_FILE:
        raise TooLarge(WatchCode.FILE, f"{path} has more than {MAX_FILE} bytes.")
    try:
        read = msgspec.convert(tomllib.loads(data.decode("utf-8")), _File)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise Malformed(WatchCode.FILE, f"{path} is not a file of watches: {error}.") from error
    watches = parse_watches(read.dids, read.namespaces, read.topics, read.handlers, constitution=read.constitution)
    webhooks = tuple(WebhookAddress(hook.url, path.parent / hook.secret_file) for hook in read.webhooks)
    return watches + WatchList((), tuple(path.parent / name for name in read.expected), webhooks)
