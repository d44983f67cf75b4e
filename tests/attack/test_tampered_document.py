"""Somebody changes the text that two agents are about to agree on: step 5."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fetching import refused_at
from simulated_registry import SimulatedRegistry, flipped, match_of, uri_of, with_echo

from treaty_consensus import canonical


def editing(registry: SimulatedRegistry, edit: Callable[[dict[str, Any]], None]) -> None:
    """Let somebody between registry and agent edit the bundle."""

    def tamper(path: str, body: bytes) -> bytes:
        if not path.endswith(".bundle"):
            return body
        value = json.loads(body)
        edit(value)
        return canonical.dumps(value)

    registry.tamper = tamper


@pytest.mark.threat(4)
async def test_a_changed_document_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    digest = registry.document_of(uri_of()).sha256
    changed = canonical.b64encode(flipped(registry.blobs[digest], 3))
    editing(registry, lambda value: value["blobs"].update({digest: changed}))
    assert (await refused_at(5, registry, tmp_path)).code == "document.digest"


async def test_a_document_that_is_left_out_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.withdrawn.add(registry.document_of(uri_of()).sha256)
    assert (await refused_at(5, registry, tmp_path)).code == "blob.withdrawn"


async def test_a_changed_card_is_refused(tmp_path: Path) -> None:
    registry = with_echo()

    def edit(value: dict[str, Any]) -> None:
        for digest, text in value["blobs"].items():
            if b"Comes back" in canonical.b64decode(text, limit=2**20):
                value["blobs"][digest] = canonical.b64encode(b'{"summary":"","title":"Approved by everybody"}')

    editing(registry, edit)
    assert (await refused_at(5, registry, tmp_path)).code == "document.digest"


async def test_a_document_of_another_hash_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    publication = registry.publish("2.0")
    registry.attach("2.0")
    digest = "ab" * 32
    registry.aliases[f"sha256:{digest}"] = [match_of(publication, by="hash")]
    assert (await refused_at(5, registry, tmp_path, f"sha256:{digest}")).code == "document.digest"
