"""What two Hellos agree on: the destination's choice, and what the source believes of it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from treaty_consensus.errors import Refused

from .actions import Agreement
from .hello import META_VERSIONS, Hello, common_version


class Provided(NamedTuple):
    """A protocol that this side speaks: its hash, and whether that may be confirmed without fetching it again."""

    protocol_hash: str
    confirmable: bool


def choose(own: Hello, hello: Hello, provides: Mapping[str, Provided]) -> tuple[Hello, Agreement | None]:
    """The destination's answer to a sourceHello: a hash it can confirm, else the first candidate, in source order, that it
    provides, else nothing. `own`: its Hello, to be completed. Raises `Refused` (`hello.destination`, `hello.version`)."""
    if hello.destination_did not in ("", own.source_did):
        raise Refused(
            "hello.destination",
            f"This is {own.source_did}, not {hello.destination_did}.",
            fix="Connect to the address of the agent you mean, or leave the DID out.",
        )
    answer = replace(
        own,
        session_id=hello.session_id,
        destination_did=hello.source_did,
        meta_version=common_version(hello.meta_version),
    )
    offered = hello.used_protocol_hash
    confirmed = next((uri for uri, known in provides.items() if known.confirmable and known.protocol_hash == offered), None)
    if confirmed is not None:
        return replace(answer, used_protocol_hash=offered), Agreement(confirmed, offered, True)
    selected = next((uri for uri in hello.candidate_protocols if uri in provides), None)
    if selected is None:
        return answer, None
    chosen = provides[selected].protocol_hash
    # Repeating the offered hash would confirm it; left out, it says that this session takes the long way.
    shown = None if chosen == offered else chosen
    return replace(answer, selected_protocol=selected, used_protocol_hash=shown), Agreement(selected, chosen, False)


def believe(own: Hello, hello: Hello, known_uri: str) -> Agreement | None:
    """What a destinationHello agrees to, of what the source offered in `own`. `known_uri`: what the offered hash is of. Raises
    `Refused` (`hello.*`)."""
    if (hello.session_id, hello.destination_did) != (own.session_id, own.source_did):
        raise Refused("hello.session", "This destinationHello answers another sourceHello.")
    if own.destination_did not in ("", hello.source_did):
        raise Refused("hello.destination", f"{hello.source_did} answered, not {own.destination_did}.")
    if hello.meta_version not in META_VERSIONS:
        raise Refused("hello.version", f"The other side chose version {hello.meta_version}, which was not offered.")
    offered, selected, shown = own.used_protocol_hash, hello.selected_protocol, hello.used_protocol_hash
    if selected is not None and selected not in own.candidate_protocols:
        raise Refused("hello.selected", "The other side selected a protocol that was not among the candidates.")
    if shown is not None and shown == offered:
        return Agreement(known_uri, offered, True)
    if selected is not None:
        return Agreement(selected, shown, False)
    if shown is not None:
        raise Refused("hello.hash", "The other side confirmed a protocol hash that was not offered.")
    return None
