"""An attestation that is genuine, and of something else or by somebody else: step 8."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fetching import refused_at
from simulated_registry import ALICE, BOB, uri_of, with_echo

from treaty_consensus import canonical


@pytest.mark.threat(32)
@pytest.mark.parametrize(
    "field, value",
    [
        ("uri", uri_of("1.0")),
        ("protocol_hash", "ab" * 32),
        ("wheel", "cd" * 32),
        ("entry_point", "treaty_handler_echo:other"),
    ],
)
async def test_an_attestation_of_something_else_is_refused(tmp_path: Path, field: str, value: str) -> None:
    registry = with_echo()
    registry.publish("2.0")
    registry.attach("2.0", attested={field: value})
    failure = await refused_at(8, registry, tmp_path, uri_of("2.0"))
    assert failure.code == "attestation.signature"


async def test_an_attestation_by_somebody_else_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    registry.attach("2.0", attested_by=BOB)
    failure = await refused_at(8, registry, tmp_path, uri_of("2.0"))
    assert failure.code == "attestation.identity"


@pytest.mark.threat(32)
async def test_a_foreign_attestation_is_refused_despite_the_policy(tmp_path: Path) -> None:
    registry = with_echo()
    registry.publish("2.0")
    registry.attach("2.0", attested_by=BOB)
    signers = [(BOB.did, "https://registry.example/sigstore")]
    failure = await refused_at(8, registry, tmp_path, uri_of("2.0"), publishers=(ALICE, BOB), signers=signers)
    assert failure.code == "attestation.identity"


@pytest.mark.threat(25)
async def test_a_trusted_root_that_the_genesis_does_not_pin_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    pinned = canonical.hex_digest(registry.trusted_root)
    other = canonical.dumps({**json.loads(registry.trusted_root), "tlogs": []})

    def tamper(path: str, body: bytes) -> bytes:
        if not path.endswith(".bundle"):
            return body
        value = json.loads(body)
        value["blobs"][pinned] = canonical.b64encode(other)
        return canonical.dumps(value)

    registry.tamper = tamper
    assert (await refused_at(8, registry, tmp_path)).code == "trusted-root.digest"
