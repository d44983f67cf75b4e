"""Principals: who stands behind a DID when it reports, vouches or votes.

In an *open* electorate a principal is a registrable domain: one label below a public suffix, by the ICANN section of the Public
Suffix List that the parameters pin. (With the list's private section every customer of a hosting company would be a principal of
its own, and free.) For a domain speak its root DIDs, `did:wba:DOMAIN` and `did:web:DOMAIN` without port and path, and the DIDs
that they granted the namespace DOMAIN to; of several grants to one DID the first in the log counts. Everybody else, a
subdomain's DID or a path's, speaks for nobody: a hosting company does not answer for what its customers sign.

In a *development* electorate every DID with a domain is a principal of its own.

did:key, IP addresses and hosts of a single label never have a principal.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from publicsuffixlist import PublicSuffixList

from ..did import is_host, parse_did
from ..errors import Malformed

_NOBODY: Final = -1


class SuffixList:
    """A Public Suffix List, of which the ICANN section counts. Raises `Malformed` when `data` is none."""

    def __init__(self, data: bytes) -> None:
        try:
            lines = data.decode("utf-8").splitlines()
            self._list = PublicSuffixList(lines, only_icann=True)
        except UnicodeError as error:  # not UTF-8, or a label that has no A-label
            raise _no_list() from error
        if not any("===BEGIN ICANN DOMAINS===" in line for line in lines):
            raise _no_list()

    def registrable(self, host: str) -> str | None:
        """The registrable domain that `host`, of lower-case A-labels, is or lies below; None for a public suffix."""
        found: str | None = self._list.privatesuffix(host)
        return found

    def is_registrable(self, host: str) -> bool:
        """Whether `host` is a registrable domain itself."""
        return is_host(host) and "." in host and self.registrable(host) == host


class Voices:
    """DID → principal. Mutable: it is told of every grant, and under which list it reads domains.

    DIDs and principals have numbers here, in the order in which they were first asked for, so that millions of them can be looked
    up at once; a number never changes. Answers are remembered.
    """

    def __init__(self) -> None:
        self._suffixes: SuffixList | None = None
        self._suffix_digest: str | None = None
        self._grants: dict[str, list[str]] = {}
        self._dids: dict[str, int] = {}
        self._names: list[str] = []
        self._principals: dict[str, int] = {}
        self._owner = array("q")  # of each DID the number of its principal

    def grant(self, namespace: str, did: str) -> None:
        """The owner of `namespace` lets `did` speak for it."""
        self._grants.setdefault(did, []).append(namespace)
        number = self._dids.get(did)
        if number is not None:
            self._owner[number] = self._find(did)

    def read_domains_by(self, digest: str | None, suffixes: SuffixList | None) -> None:
        """From now on count by this suffix list, named by its digest; None makes every DID with a domain a principal."""
        if digest != self._suffix_digest:
            self._suffix_digest, self._suffixes = digest, suffixes
            self._owner = array("q", map(self._find, self._dids))

    @property
    def suffix_digest(self) -> str | None:
        """The digest of the list in use."""
        return self._suffix_digest

    def number(self, did: str) -> int:
        """The number of a DID."""
        number = self._dids.get(did)
        if number is None:
            number = self._dids[did] = len(self._dids)
            self._owner.append(self._find(did))
        return number

    def principal_of(self, did: str) -> str | None:
        """The principal that `did` speaks for, if any."""
        number = self._dids.get(did)
        owner = self._owner[self.number(did) if number is None else number]
        return self._names[owner] if owner >= 0 else None

    def owners(self, dids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the principal of each of the DIDs with these numbers; −1 where it has none."""
        return np.frombuffer(self._owner, dtype=np.int64)[dids] if len(dids) else dids

    def places(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """For each number of a principal, and for the −1 of nobody, its place among `principals`; −1 where it is none of them."""
        place = np.full(len(self._names) + 1, -1, dtype=np.int64)
        for number, name in enumerate(principals):
            owner = self._principals.get(name)
            if owner is not None:
                place[owner] = number
        return place

    def _find(self, text: str) -> int:
        principal = self._principal(text)
        if principal is None:
            return _NOBODY
        number = self._principals.get(principal)
        if number is None:
            number = self._principals[principal] = len(self._names)
            self._names.append(principal)
        return number

    def _principal(self, text: str) -> str | None:
        did, suffixes = parse_did(text), self._suffixes
        if suffixes is None:
            return did.principal(lambda _host: did.text)
        if did.port is None and not did.path and did.host is not None and did.principal(suffixes.registrable) == did.host:
            return did.host
        return next((namespace for namespace in self._grants.get(text, ()) if suffixes.is_registrable(namespace)), None)


def _no_list() -> Malformed:
    return Malformed(
        "parameters.suffix-list", "This is not a Public Suffix List.", fix="Take the list that publicsuffix.org keeps."
    )
