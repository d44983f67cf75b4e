"""Which caller may speak as which agent, and how much of a bound it may use, where the transport tells callers apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treaty_handler import Value


class Speakers:
    """The ids of agents and the callers that may use them.

    With the parameter `speakers`, and in a shared session, an id belongs to the caller that `names` gives it to, and a DID to the
    caller that proved it. In a session of two peers a DID does so, and other ids are free. Else there are no proofs, and everyone
    may use every id. A gateway speaks for its nodes: it has checked them.
    """

    def __init__(self, parameters: Value, gateway: str = "", *, members: Iterable[str] = (), direct: bool = False) -> None:
        """Read `speakers`: {names: id → caller, gateway: caller or ""}. `gateway`: a caller that is one as well, or "".
        `members`: those that proved their DIDs. `direct`: whether the session is of two peers."""
        stated: dict[str, Any] | None = parameters.get("speakers")
        is_shared = parameters.get("peer") == ""
        # In a session a member may only claim its DID. With `speakers` the transport admits proofs alone.
        self.members = set(members) if stated is None and (is_shared or direct) else None
        self.proved = stated is not None or is_shared
        self._direct = direct and not self.proved
        self._names: dict[str, str] = (stated or {}).get("names", {})
        self._gateways = {gateway, (stated or {}).get("gateway", "")} - {""}

    def denies(self, name: str, caller: str) -> bool:
        """Return whether a caller may not use this id as the sender's."""
        if self._direct:
            return self._is_anothers(name, caller)
        return self.proved and caller not in self._gateways and not self._owns(name, caller)

    def denies_node(self, name: str, caller: str) -> bool:
        """Return whether a caller may not register a node with this id. An id that is given to no caller is free."""
        return self.proved and self._is_anothers(name, caller)

    def joined(self, member: str) -> None:
        """Note a member that proved its DID."""
        if self.members is not None:
            self.members.add(member)

    def left(self, member: str) -> None:
        """Forget a member of a shared session."""
        if self.members is not None:
            self.members.discard(member)

    def has_room(self, caller: str, size: int, most: int, holdings: Iterable[tuple[str, int]]) -> bool:
        """Return whether a caller may use `size` more of a bound. `holdings`: what each caller uses already.

        A proved caller uses at most as much as is left for the others, so that one cannot close the bound to all. A gateway
        may use all of it: it divides the places among its nodes itself.
        """
        own = total = 0
        for name, each in holdings:
            total += each
            own += each if name == caller else 0
        free = most - total - size
        return free >= 0 and (not self.proved or caller in self._gateways or own + size <= free + 1)

    def _is_anothers(self, name: str, caller: str) -> bool:
        return self._owner(name) != "" and not self._owns(name, caller)

    def _owns(self, name: str, caller: str) -> bool:
        return self._owner(name) == caller and (self.members is None or caller in self.members)

    def _owner(self, name: str) -> str:
        return self._names.get(name) or (name if name.startswith("did:") else "")
