"""Map each DID to the principal that it reports, vouches and votes for.

In an *open* electorate a principal is a registrable domain: one label below a public suffix, by the ICANN section of the
Public Suffix List that the parameters pin. (By the list's private section, every customer of a hosting company would be a
principal, at no cost.) These DIDs act for the domain: its root DIDs `did:wba:DOMAIN` and `did:web:DOMAIN` without port and
path, and the DIDs to which they granted the namespace DOMAIN. If several grants of a DID are in force
(`treaty_consensus.admit`), the first in the log counts. The DID of a subdomain or of a path acts for no principal: a hosting
company is not responsible for the signatures of its customers.

In a *development* electorate every DID with a domain is a principal of its own. A did:key, an IP address and a host of a
single label never have a principal, nor has a did:treaty by itself.

Specification: `docs/specification/election.md`, section 1.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from publicsuffixlist import PublicSuffixList

from ..codes import ParametersCode
from ..did import is_host, parse_did
from ..errors import Malformed

_NO_PRINCIPAL: Final = -1
_NOT_LOOKED_UP: Final = -2


class _Grant(NamedTuple):
    """The DID that signed a grant, its tenure then, and that of the DID that got the grant."""

    owner: str
    owner_tenure: int
    tenure: int


class SavedDirectory(msgspec.Struct, frozen=True, array_like=True):
    """Hold the contents of a `PrincipalDirectory` but its suffix list. All lists are in the order of the log.

    `grants`: each DID with its grants, by namespace.
    """

    dids: list[str]
    tenures: dict[str, int]
    grants: list[tuple[str, list[tuple[str, _Grant]]]]
    grantees: list[tuple[str, list[str]]]


class SuffixList:
    """Read a Public Suffix List; its ICANN section counts. Raises `Malformed` (`parameters.value`) when `data` is not such
    a list.
    """

    def __init__(self, data: bytes) -> None:
        try:
            lines = data.decode("utf-8").splitlines()
            # Without the private section: otherwise each customer of a hosting company would be a principal.
            self._list = PublicSuffixList(lines, only_icann=True)
        except UnicodeError as error:  # not UTF-8, or a label that has no A-label
            raise _no_list() from error
        # The parser accepts any text, so this marker is the test that it is a suffix list at all.
        if not any("===BEGIN ICANN DOMAINS===" in line for line in lines):
            raise _no_list()

    def registrable(self, host: str) -> str | None:
        """Return the registrable domain of a host, or None for a public suffix.

        `host`: lower-case A-labels.
        """
        domain: str | None = self._list.privatesuffix(host)
        return domain

    def is_registrable(self, host: str) -> bool:
        """Tell whether `host` is itself a registrable domain."""
        return is_host(host) and "." in host and self.registrable(host) == host


class PrincipalDirectory:
    """Map DIDs to principals. Mutable: pass in every grant, every identity and each change of the suffix list.

    DIDs and principals have numbers, so that numpy can look up millions of them at once. A number never changes. The principal
    of a DID is looked up when it is first asked for, and again after a change.
    """

    def __init__(self) -> None:
        self._suffixes: SuffixList | None = None
        self._suffix_digest: str | None = None
        self._grants: dict[str, dict[str, _Grant]] = {}  # DID → namespace → the newest grant, in the order of the log
        self._grantees: dict[str, dict[str, None]] = {}  # DID → those to which it ever granted, in the order of the log
        self._registrable: dict[str, bool] = {}  # hosts and granted namespaces, by the present list
        self._tenures: dict[str, int] = {}  # only those above the first
        self._dids: dict[str, int] = {}
        self._texts: list[str] = []
        self._namespaces: dict[str, int] = {}  # granted namespace → number
        self._only_grant = array("q")  # DID number → number of the namespace of its only grant, or −1 (`_note_only_grant`)
        self._names: list[str] = []
        self._principals: dict[str, int] = {}
        self._owner = array("q")  # DID number → number of its principal, −1, or −2 until it is looked up
        self._waiting: list[int] = []  # numbers of the DIDs with −2, and perhaps of others

    def saved(self) -> SavedDirectory:
        """Return the contents. The suffix list is not among them: it is read again."""
        grants = [(did, [*granted.items()]) for did, granted in self._grants.items()]
        return SavedDirectory(self._texts, self._tenures, grants, [(did, [*to]) for did, to in self._grantees.items()])

    def restore(self, saved: SavedDirectory) -> None:
        """Take over saved contents. The directory must be new."""
        self._tenures = saved.tenures
        self._grants = {did: dict(granted) for did, granted in saved.grants}
        self._grantees = {did: dict.fromkeys(to) for did, to in saved.grantees}
        # Last: a number comes with what is known of the grants.
        for did in saved.dids:
            self.number(did)

    def grant(self, namespace: str, did: str, owner: str, *, withdrawn: bool = False) -> None:
        """Record that `owner` lets `did` act for `namespace`, its own, or takes that back."""
        grants = self._grants.setdefault(did, {})
        # Removed first: a grant that is made anew takes the last place.
        grants.pop(namespace, None)
        if not withdrawn:
            grants[namespace] = _Grant(owner, self.tenure(owner), self.tenure(did))
            self._grantees.setdefault(owner, {})[did] = None
        if did in self._dids:
            self._note_only_grant(did)
        self._look_up_again((did,))

    def identify(self, did: str, tenure: int) -> None:
        """Record an identity of `did`. A new tenure ends the grants by it and to it."""
        # Here, so that numbers follow from the leaves alone, and not from when an epoch was closed.
        self.number(did)
        if tenure != self.tenure(did):
            self._tenures[did] = tenure
            concerned = [each for each in (did, *self._grantees.get(did, ())) if each in self._dids]
            for each in concerned:
                self._note_only_grant(each)
            self._look_up_again(concerned)

    def read_domains_by(self, digest: str | None, suffixes: SuffixList | None) -> None:
        """Set the suffix list, named by its digest. With None, every DID with a domain is a principal."""
        if digest != self._suffix_digest:
            self._suffix_digest, self._suffixes = digest, suffixes
            self._registrable.clear()
            # Another list changes the principal of every known DID, so all of them are looked up again.
            self._look_up_again(self._texts)

    @property
    def suffix_digest(self) -> str | None:
        """Return the digest of the current suffix list, or None."""
        return self._suffix_digest

    @property
    def size(self) -> int:
        """Return the number of principals that were found so far. Their numbers are smaller."""
        return len(self._names)

    def number(self, did: str) -> int:
        """Return the number of a DID."""
        number = self._dids.setdefault(did, len(self._texts))
        if number == len(self._texts):
            self._texts.append(did)
            self._owner.append(_NOT_LOOKED_UP)
            self._waiting.append(number)
            self._only_grant.append(-1)
            self._note_only_grant(did)
        return number

    def principal_of(self, did: str) -> str | None:
        """Return the principal that `did` acts for, or None."""
        owner = self._look_up(self.number(did))
        return self._names[owner] if owner >= 0 else None

    def owners(self, dids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the principals of these DIDs, given by number; −1 for a DID without a principal."""
        self._look_all_up()
        return np.frombuffer(self._owner, dtype=np.int64)[dids] if len(dids) else dids

    def places(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return for each principal number its place in `principals`, or −1. The last element stands for −1, "no principal"."""
        self._look_all_up()
        place = np.full(len(self._names) + 1, -1, dtype=np.int64)
        for number, name in enumerate(principals):
            owner = self._principals.get(name)
            if owner is not None:
                place[owner] = number
        return place

    def tenure(self, did: str) -> int:
        """Return the newest tenure of a DID; 1 for one without an identity."""
        return self._tenures.get(did, 1)

    def _look_up_again(self, dids: Iterable[str]) -> None:
        for did in dids:
            number = self._dids.get(did)
            if number is not None and self._owner[number] != _NOT_LOOKED_UP:
                self._owner[number] = _NOT_LOOKED_UP
                self._waiting.append(number)

    def _look_all_up(self) -> None:
        # Late: most DIDs are logged before the list is known by which they are read.
        waiting, self._waiting = np.array(self._waiting, dtype=np.int64), []
        if self._suffixes is not None:
            waiting = self._find_by_only_grants(waiting, self._suffixes)
        for number in waiting.tolist():
            self._look_up(number)

    def _note_only_grant(self, did: str) -> None:
        """Note the grant of a DID if that alone decides whom it acts for: the DID has a path and one grant, in force."""
        grants, only = self._grants.get(did, {}), -1
        if len(grants) == 1 and did.count(":") > 2:
            ((namespace, grant),) = grants.items()
            if (self.tenure(did), self.tenure(grant.owner)) == (grant.tenure, grant.owner_tenure):
                only = self._namespaces.setdefault(namespace, len(self._namespaces))
        self._only_grant[self._dids[did]] = only

    def _find_by_only_grants(self, dids: NDArray[np.int64], suffixes: SuffixList) -> NDArray[np.int64]:
        """Find the principals of those DIDs that have an only grant, together. Returns the other ones.

        Most DIDs of a large electorate are such ones, and a look-up of each takes three times as long.
        """
        only = np.array(self._only_grant, dtype=np.int64)[dids]
        owners = np.frombuffer(self._owner, dtype=np.int64)
        undecided, names = (only >= 0) & (owners[dids] == _NOT_LOOKED_UP), [*self._namespaces]
        numbers = np.full(len(names), _NO_PRINCIPAL, dtype=np.int64)
        for namespace in np.unique(only[undecided]).tolist():
            if self._is_registrable(names[namespace], suffixes):
                numbers[namespace] = self._number_of(names[namespace])
        owners[dids[undecided]] = numbers[only[undecided]]
        others: NDArray[np.int64] = dids[~undecided]
        return others

    def _look_up(self, number: int) -> int:
        owner = self._owner[number]
        if owner == _NOT_LOOKED_UP:
            owner = self._owner[number] = self._find(self._texts[number])
        return owner

    def _find(self, text: str) -> int:
        principal = self._principal(text)
        return _NO_PRINCIPAL if principal is None else self._number_of(principal)

    def _number_of(self, principal: str) -> int:
        number = self._principals.get(principal)
        if number is None:
            number = self._principals[principal] = len(self._names)
            self._names.append(principal)
        return number

    def _principal(self, text: str) -> str | None:
        suffixes = self._suffixes
        if suffixes is None:
            return parse_did(text).principal(lambda _host: text)
        # Most DIDs have a path, and only one without a path or a port can be a root DID: the others need not be parsed.
        did = parse_did(text) if text.count(":") == 2 else None
        if (
            did
            and did.port is None
            and did.host is not None
            and did.validated_by is None
            and self._is_registrable(did.host, suffixes)
        ):
            return did.host
        grants = self._grants.get(text)
        if not grants:
            return None
        tenure, tenures = self.tenure(text), self._tenures
        # A DID with several grants acts for one principal only: the first grant in the log that is in force.
        for namespace, grant in grants.items():
            lasts = tenure == grant.tenure and tenures.get(grant.owner, 1) == grant.owner_tenure
            if lasts and self._is_registrable(namespace, suffixes):
                return namespace
        return None

    def _is_registrable(self, namespace: str, suffixes: SuffixList) -> bool:
        # Kept: a domain speaks itself and grants to many DIDs, and a list is slow to read.
        cached = self._registrable.get(namespace)
        if cached is None:
            cached = self._registrable[namespace] = suffixes.is_registrable(namespace)
        return cached


def _no_list() -> Malformed:
    return Malformed(ParametersCode.VALUE, "This is not a Public Suffix List.", fix="Use the list from publicsuffix.org.")
