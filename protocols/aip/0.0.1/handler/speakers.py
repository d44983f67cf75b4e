"""Which caller may speak as which agent, where the transport proves who calls."""

from __future__ import annotations

from typing import Any

from treaty_handler import Value


class Speakers:
    """The ids of agents and the callers that may use them.

    Without the parameter `speakers` there are no proofs, and everyone may use every id. With it an id belongs to the caller that
    `names` gives it to; one that is a DID belongs to that DID. A gateway speaks for its nodes: it has checked them.
    """

    def __init__(self, parameters: Value, gateway: str = "") -> None:
        """Read `speakers`: {names: id → caller, gateway: caller or ""}. `gateway`: a caller that is one as well, or ""."""
        stated: dict[str, Any] | None = parameters.get("speakers")
        self.proved = stated is not None
        self._names: dict[str, str] = (stated or {}).get("names", {})
        self._gateways = {gateway, (stated or {}).get("gateway", "")} - {""}

    def denies(self, name: str, caller: str) -> bool:
        """Return whether a caller may not use this id as the sender's."""
        return self.proved and caller not in self._gateways and self._owner(name) != caller

    def denies_node(self, name: str, caller: str) -> bool:
        """Return whether a caller may not register a node with this id. An id that is given to no caller is free."""
        return self.proved and self._owner(name) not in ("", caller)

    def _owner(self, name: str) -> str:
        return self._names.get(name) or (name if name.startswith("did:") else "")
