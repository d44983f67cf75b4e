"""What an agent remembers of agreements: a cache that may be lost, damaged or full, and never lies about whose it is."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from treaty_agent.sessions.agreements import MAX_AGREEMENTS, AgreementCache, AgreementRecord

HASH = "ab" * 32


def agreement(peer: str = "ws://shop.example:9000", topic: str = "commerce/x", digest: str = HASH) -> AgreementRecord:
    return AgreementRecord(
        peer, topic, "did:wba:shop.example", digest, "https://registry.example/p", ("https://registry.example/p",)
    )


def test_000_56_an_agreement_is_found_again_by_peer_and_topic(tmp_path: Path) -> None:
    AgreementCache(tmp_path).remember(agreement())
    later = AgreementCache(tmp_path)
    assert later.get("ws://shop.example:9000", "commerce/x") == agreement()
    assert later.get("ws://shop.example:9000", "commerce/y") is None
    assert later.get("ws://other.example:9000", "commerce/x") is None
    assert stat.S_IMODE((tmp_path / "agreements.json").stat().st_mode) == 0o600


def test_the_newest_agreement_replaces_the_one_before(tmp_path: Path) -> None:
    cache = AgreementCache(tmp_path)
    cache.remember(agreement())
    cache.remember(agreement(digest="cd" * 32))
    found = AgreementCache(tmp_path).get("ws://shop.example:9000", "commerce/x")
    assert found is not None
    assert found.hash == "cd" * 32
    assert len(json.loads((tmp_path / "agreements.json").read_bytes())["agreements"]) == 1


def test_what_is_unchanged_is_not_written_again(tmp_path: Path) -> None:
    cache = AgreementCache(tmp_path)
    cache.remember(agreement())
    (tmp_path / "agreements.json").unlink()
    cache.remember(agreement())
    assert not (tmp_path / "agreements.json").exists()


def test_the_oldest_beyond_the_cap_are_forgotten(tmp_path: Path) -> None:
    cache = AgreementCache(tmp_path)
    for number in range(MAX_AGREEMENTS + 5):
        cache.remember(agreement(f"peer {number}"))
    assert len(json.loads((tmp_path / "agreements.json").read_bytes())["agreements"]) == MAX_AGREEMENTS
    later = AgreementCache(tmp_path)
    assert [later.get(f"peer {number}", "commerce/x") is None for number in (0, 4, 5, MAX_AGREEMENTS + 4)] == [
        True,
        True,
        False,
        False,
    ]


def test_forgetting_is_for_one_peer_and_topic(tmp_path: Path) -> None:
    cache = AgreementCache(tmp_path)
    cache.remember(agreement())
    cache.remember(agreement(topic="commerce/y"))
    cache.forget("ws://shop.example:9000", "commerce/x")
    cache.forget("nobody", "nothing")
    later = AgreementCache(tmp_path)
    assert later.get("ws://shop.example:9000", "commerce/x") is None
    assert later.get("ws://shop.example:9000", "commerce/y") is not None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"agreements":[{"peer":7}]}', b'{"agreements":[]} x', b"\xff" * 10])
def test_a_damaged_file_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "agreements.json").write_bytes(damage)
    cache = AgreementCache(tmp_path)
    assert cache.get("ws://shop.example:9000", "commerce/x") is None
    cache.remember(agreement())
    assert AgreementCache(tmp_path).get("ws://shop.example:9000", "commerce/x") == agreement()
