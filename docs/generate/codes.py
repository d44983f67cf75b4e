"""The tables of error codes: each row is a member of an enum of codes."""

from __future__ import annotations

import inspect
from functools import partial

from treaty_consensus import codes as consensus
from treaty_consensus.codes import Code
from treaty_handoff import codes as handoff
from treaty_io import codes as client
from treaty_registry import codes as registry

from . import GENERATORS, SITE

TABLES: dict[str, list[str]] = {
    "codes-anchors": ["anchors", "equivocation", "log", "witness"],
    "codes-attestation": ["attestation"],
    "codes-audit": ["audit", "mirror"],
    "codes-authentication": ["authentication"],
    "codes-ballot": [
        "ballot",
        "decision",
        "identity",
        "parameters",
        "publish",
        "rotation",
        "status",
        "withdrawal",
    ],
    "codes-blobs": ["blobs", "http", "registry", "search", "sigstore", "token", "topic"],
    "codes-bundle": [
        "bundle",
        "checkpoint",
        "contradiction",
        "directory",
        "publisher",
        "resolve",
        "sigstore-bundle",
        "trusted-root",
        "wheel",
    ],
    "codes-canonical": ["canonical"],
    "codes-connection": ["connection", "peer"],
    "codes-control": ["config", "control", "policy", "system", "watch"],
    "codes-did": ["did"],
    "codes-discovery": ["discovery"],
    "codes-document": ["document", "card"],
    "codes-egress": ["egress"],
    "codes-electorate": ["electorate"],
    "codes-fence": ["fence", "node", "keys", "database", "settings", "backup", "copy"],
    "codes-flow": ["flow"],
    "codes-frame": ["frame"],
    "codes-handler": ["handler"],
    "codes-handoff": ["handoff"],
    "codes-hello": ["hello"],
    "codes-memory": ["memory", "lock"],
    "codes-meta": ["meta"],
    "codes-model": ["model"],
    "codes-network": ["network"],
    "codes-note": ["note"],
    "codes-operation": ["operation", "transcript"],
    "codes-project": ["project", "vector"],
    "codes-protocol": ["protocol"],
    "codes-quota": ["quota", "sender", "blob", "content", "disk"],
    "codes-report": ["report"],
    "codes-rpc": ["rpc"],
    "codes-sandbox": ["sandbox"],
    "codes-secure": ["secure"],
    "codes-session": ["session", "negotiation", "agent"],
    "codes-stamp": ["stamp"],
    "codes-statement": ["statement"],
}
"""The tables by name, and the prefixes of the codes in each."""


def all_codes() -> list[Code]:
    """The codes of all packages, in the order of their texts."""
    modules = (consensus, client, handoff, registry)
    classes = {found for module in modules for _, found in inspect.getmembers(module, inspect.isclass)}
    return sorted(code for found in classes if issubclass(found, Code) for code in found)


def table(prefixes: list[str]) -> str:
    """The table of the codes with these prefixes, in the order of the prefixes."""
    lines = ["| code | kind | meaning |", "|---|---|---|"]
    for prefix in prefixes:
        for code in all_codes():
            if code.partition(".")[0] == prefix:
                kinds = ", ".join(kind.__name__ for kind in code.kinds) or "–"
                lines.append(f"| `{code}` | {kinds} | {code.meaning} |")
    return "\n".join(lines)


GENERATORS.update({name: partial(table, prefixes) for name, prefixes in TABLES.items()})


def every_table() -> str:
    """The codes of each prefix, under a heading of its own."""
    prefixes = sorted({code.partition(".")[0] for code in all_codes()})
    return "\n\n".join(f"## `{prefix}`\n\n{table([prefix])}" for prefix in prefixes)


SITE["all-codes"] = every_table
