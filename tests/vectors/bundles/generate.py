"""A bundle as a registry answered it, its handler's wheel, and changes of both: `python tests/vectors/bundles/generate.py`.

The attestation in the bundle has random signatures of keys that no longer exist: a second run makes other, equally good files.
`tests/contract/test_vectors.py` verifies the files with the ten steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from bundle_vectors import outcome  # noqa: E402
from signers import ORIGIN  # noqa: E402
from simulated_registry import ALICE, NAME, TOPIC, uri_of, with_echo  # noqa: E402

from treaty_client.registries.bundle import parse_bundle  # noqa: E402
from treaty_consensus import canonical, kinds, statement  # noqa: E402
from treaty_consensus.log.note import KeyType, SignerKey  # noqa: E402

OTHER_KEY = SignerKey(ORIGIN, KeyType.ED25519, canonical.sha256(b"the key of another log"))


def main() -> None:
    registry = with_echo()
    data = registry.bundle(uri_of())
    leaves = {leaf.index: statement.parse(leaf.leaf).body for leaf in parse_bundle(data).leaves}
    (handler,) = (body for body in leaves.values() if isinstance(body, kinds.Handler))
    (HERE / "echo.bundle.json").write_bytes(data)
    (HERE / handler.filename).write_bytes(registry.blobs[handler.wheel.sha256])
    (HERE / "topic.bundle.json").write_bytes(registry.topic_bundle(TOPIC))
    facts = {
        "registry": str(NAME),
        "uri": uri_of(),
        "topic": TOPIC,
        "origin": ORIGIN,
        "now": registry.now,
        "publisher": ALICE.did,
    }
    (HERE / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    (HERE / "changes.json").write_text(json.dumps([change | outcome(change) for change in changes(data)], indent=1) + "\n")


def changes(data: bytes) -> list[dict[str, Any]]:
    """One change for each reason that a reader must find by itself."""
    bundle = parse_bundle(data)
    bodies = [statement.parse(leaf.leaf).body for leaf in bundle.leaves]
    place = {type(body): number for number, body in enumerate(bodies)}
    publish, handler = bodies[place[kinds.Publish]], bodies[place[kinds.Handler]]
    assert isinstance(publish, kinds.Publish) and isinstance(handler, kinds.Handler)
    value, known = json.loads(data), json.loads((HERE / "facts.json").read_text())
    text, proof = value["checkpoint"], value["leaves"][-1]["proof"]
    another = canonical.b64encode(b"# Echo 1.1\n")
    published = f"/leaves/{place[kinds.Publish]}"
    return [
        {"title": "as it is"},
        {"title": "the protocol of another publisher", "known": {"uri": known["uri"].replace("alice", "bob")}},
        {"title": "a checkpoint of another size", "pointer": "/checkpoint", "value": _other_size(text)},
        {"title": "the key of another log", "known": {"registry": f"https://{ORIGIN}#{OTHER_KEY.verifier}"}},
        {"title": "an hour and a second later", "known": {"now": known["now"] + 3601}},
        {"title": "a proof of another leaf", "pointer": f"{published}/proof", "value": proof},
        {"title": "another index", "pointer": f"{published}/index", "value": bundle.leaves[place[kinds.Publish]].index + 1},
        {"title": "the identity of the publisher is left out", "pointer": f"/leaves/{place[kinds.Identity]}"},
        {"title": "another document", "pointer": f"/blobs/{publish.document.sha256}", "value": another},
        {"title": "a card is left out", "pointer": f"/blobs/{publish.card.sha256}"},
        {"title": "a publisher that the policy does not name", "known": {"publisher": "did:wba:carol.example"}},
        {"title": "another wheel", "wheel": canonical.b64encode(b"PK")},
        {"title": "another attestation", "pointer": f"/blobs/{handler.bundle.sha256}", "value": another},
        {"title": "the trusted root is left out", "pointer": f"/blobs/{_genesis(bodies).trusted_root}"},
    ]


def _genesis(bodies: Sequence[kinds.Body]) -> kinds.Genesis:
    assert isinstance(bodies[0], kinds.Genesis)
    return bodies[0]


def _other_size(note: str) -> str:
    name, size, rest = note.split("\n", 2)
    return f"{name}\n{int(size) + 1}\n{rest}"


if __name__ == "__main__":
    main()
