"""Read and verify the bundles below tests/vectors: as they are, and with each change that the file `changes.json` lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from treaty_client.policy import Policy
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.protocols.verification.ten_steps import read_bundle, verify_bundle, verify_handler
from treaty_client.registries.trust import TrustedRegistry, parse_registry_name
from treaty_consensus import canonical
from treaty_consensus.protocol import parse_protocol_uri

FOLDER = Path(__file__).parents[1] / "vectors" / "bundles"


def facts() -> dict[str, Any]:
    """What a reader knows before: the registry and its key, the URI, the time, the publisher of its policy."""
    data: dict[str, Any] = json.loads((FOLDER / "facts.json").read_text())
    return data


def outcome(change: dict[str, Any]) -> dict[str, Any]:
    """Take steps 1 to 9 with one change; say the step and the code that refuse it, or nothing.

    `pointer`, `value`: a place in the bundle (RFC 6901) and its new value; without a value it is removed. `known`: other facts.
    `wheel`: other bytes, in base64.
    """
    facts_of_case = facts() | change.get("known", {})
    data = _changed((FOLDER / "echo.bundle.json").read_bytes(), change) if "pointer" in change else None
    data = (FOLDER / "echo.bundle.json").read_bytes() if data is None else data
    (wheel,) = (path.read_bytes() for path in FOLDER.glob("*.whl"))
    if "wheel" in change:
        wheel = canonical.b64decode(change["wheel"], limit=2**20)
    trusted, policy = TrustedRegistry(parse_registry_name(facts_of_case["registry"]), None), Policy([facts_of_case["publisher"]])
    try:
        bundle = read_bundle(data, uri=facts_of_case["uri"])
        proven = verify_bundle(bundle, parse_protocol_uri(facts_of_case["uri"]), trusted, policy, now=facts_of_case["now"])
        verify_handler(proven, wheel, policy, bundle=data)
    except VerificationFailed as error:
        return {"step": int(error.step), "code": str(error.code)}
    return {}


def _changed(data: bytes, change: dict[str, Any]) -> bytes:
    value = json.loads(data)
    *parents, last = change["pointer"].split("/")[1:]
    place: Any = value
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    key = int(last) if isinstance(place, list) else last
    if "value" in change:
        place[key] = change["value"]
    else:
        del place[key]
    return canonical.dumps(value)
