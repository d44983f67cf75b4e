"""Make the profile of a business for UCP, which its host serves at `/.well-known/ucp` (UCP 2026-04-08, "Business Profile").

    {"ucp": {"version": "2026-04-08",
             "services": {"dev.ucp.shopping": [{"version": …, "transport": "a2a", "endpoint": "https://shop.example/a2a"}]},
             "capabilities": {"com.example.loyalty": [{"version": …, "spec": URI, "schema": "https://example.com/loyalty.json"}]},
             "payment_handlers": {}}}

A capability is a protocol by a name of its publisher's domain in reverse. `spec` is the protocol's URI, whose document is in a
log. `schema` stays at the origin that owns the name, as UCP demands.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed
from treaty_consensus.reverse_dns import https_host, is_schema_of

VERSION = "2026-04-08"
"""The release of UCP whose form this is."""
_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9_-]*[a-z0-9_])?)+")
_TRANSPORTS = ("rest", "mcp", "a2a")
_FORM = re.compile(r"([^@=]{3,255})@([0-9]{4}-[0-9]{2}-[0-9]{2})=([!-~]{1,2048})")


class UcpCapability(NamedTuple):
    """A version of a capability. `schema`: a URL at the origin that owns the name. `extends`: the names of the capabilities that
    it extends: a platform that has none of them ignores it."""

    name: str
    version: str
    schema: str
    extends: tuple[str, ...] = ()


class UcpService(NamedTuple):
    """A version of a service at one endpoint. `transport`: rest, mcp or a2a."""

    name: str
    version: str
    transport: str
    endpoint: str


def parse_capability(text: str) -> UcpCapability:
    """Parse NAME@DATE=SCHEMA. Raises `Malformed` (`system.usage`), also for a schema at another origin than the name's."""
    name, version, schema = _parse(text, "com.example.loyalty@2026-04-08=https://example.com/loyalty.json")
    if not is_schema_of(schema, name):
        raise Malformed(
            SystemCode.USAGE,
            f"UCP demands that the schema of {name} is at the domain that owns the name.",
            fix="Name an https URL of that domain.",
        )
    return UcpCapability(name, version, schema)


def parse_extension(text: str) -> tuple[str, str]:
    """Parse NAME=PARENT: a capability and one that it extends. Raises `Malformed` (`system.usage`)."""
    name, _, parent = text.partition("=")
    if not (_NAME.fullmatch(name) and _NAME.fullmatch(parent)):
        raise _malformed(text, "com.example.loyalty=dev.ucp.shopping.checkout")
    return name, parent


def parse_service(text: str) -> UcpService:
    """Parse NAME@DATE=TRANSPORT:ENDPOINT. Raises `Malformed` (`system.usage`)."""
    example = "dev.ucp.shopping@2026-04-08=a2a:https://shop.example/a2a"
    name, version, place = _parse(text, example)
    transport, _, endpoint = place.partition(":")
    if transport not in _TRANSPORTS or https_host(endpoint) is None:
        raise _malformed(text, example)
    return UcpService(name, version, transport, endpoint)


def ucp_profile(capabilities: Sequence[tuple[UcpCapability, str]], services: Sequence[UcpService]) -> bytes:
    """Return the profile as JSON. `capabilities`: each with the URI of its protocol."""
    offered: dict[str, list[dict[str, object]]] = {}
    for capability, uri in capabilities:
        entry: dict[str, object] = {"version": capability.version, "spec": uri, "schema": capability.schema}
        if capability.extends:
            entry["extends"] = capability.extends[0] if len(capability.extends) == 1 else list(capability.extends)
        offered.setdefault(capability.name, []).append(entry)
    reached: dict[str, list[dict[str, str]]] = {}
    for service in services:
        endpoint = {"version": service.version, "transport": service.transport, "endpoint": service.endpoint}
        reached.setdefault(service.name, []).append(endpoint)
    # UCP requires both registries of a business, also an empty one.
    members = {"version": VERSION, "services": reached, "capabilities": offered, "payment_handlers": {}}
    return json.dumps({"ucp": members}, indent=2).encode() + b"\n"


def _parse(text: str, example: str) -> tuple[str, str, str]:
    match = _FORM.fullmatch(text)
    if match is None or not _NAME.fullmatch(match[1]):
        raise _malformed(text, example)
    try:
        dt.date.fromisoformat(match[2])
    except ValueError as error:
        raise _malformed(text, example) from error
    return match[1], match[2], match[3]


def _malformed(text: str, example: str) -> Malformed:
    return Malformed(SystemCode.USAGE, f"UCP has no such entry: {text[:200]}", fix=f"Write it as {example}")
