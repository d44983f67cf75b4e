"""An operator invents keys for a publisher towards agents that never met it: the publisher's own host is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetching import kept_in
from lying import (
    retell,
    tell_another_first_identity,
)
from simulated_registry import ALICE, BOB, SimulatedRegistry, uri_of, with_echo

from treaty_client.policy import Policy
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus.did import Did
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.network.did_documents import DidDocument, DidResolver


class Hosts:
    """The web servers of domains: what document each serves."""

    def __init__(self, **keys: bytes) -> None:
        self.keys, self.asked = {f"did:wba:{host}.example": key for host, key in keys.items()}, 0

    def resolver(self) -> DidResolver:
        async def fetch(did: Did) -> DidDocument:
            self.asked += 1
            if did.text not in self.keys:
                raise Unavailable("egress.unreachable", "Nobody answers.")
            return DidDocument(did, b"", {f"{did.text}#key-1": self.keys[did.text]})

        return DidResolver(fetch)


def asking(registry: SimulatedRegistry, home: Path, hosts: Hosts) -> Fetcher:
    registry.trusted_in(home)
    policy = Policy([ALICE.did], resolve_publishers=True)
    return Fetcher(home, policy, registry.network(), clock=lambda: registry.now, resolver=hosts.resolver())


@pytest.mark.threat(18)
async def test_a_first_contact_can_ask_the_publishers_own_host(tmp_path: Path) -> None:
    registry = with_echo()
    honest = Hosts(alice=ALICE.public_key)
    lying = registry.copy()
    retell(lying, tell_another_first_identity(lying), document=b"# Another\n")
    lying.trusted_in(tmp_path)
    before = kept_in(tmp_path)
    for hosts, code in ((honest, "publisher.other-keys"), (Hosts(), "egress.unreachable")):
        async with asking(lying, tmp_path, hosts) as agent:
            with pytest.raises(TreatyError) as failure:
                await agent.fetch(uri_of())
            assert failure.value.code == code and hosts.asked == 1
            assert kept_in(tmp_path) == before
    async with asking(registry, tmp_path / "other", honest) as agent:
        await agent.fetch(uri_of())
        await agent.fetch(uri_of())
    assert honest.asked == 2, "what is fresh asks nobody"


async def test_another_key_of_a_host_is_another_publisher(tmp_path: Path) -> None:
    registry = with_echo()
    async with asking(registry, tmp_path, Hosts(alice=BOB.public_key)) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.fetch(uri_of())
    assert (failure.value.step, failure.value.code) == (4, "publisher.other-keys")
