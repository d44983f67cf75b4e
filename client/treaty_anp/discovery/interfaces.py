"""Read the OpenRPC and MCP interfaces of an agent description: where the methods are that `treaty_agent.rpc` calls.

{"type": "StructuredInterface", "protocol": "openrpc", "url": URL}            the URL of an OpenRPC document
{"type": "StructuredInterface", "protocol": "openrpc", "content": {…}}        the document itself
{"type": "StructuredInterface", "protocol": "MCP", "url": URL}                the endpoint of an MCP server
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# Each interface is at least one request before the first call.
MAX_INTERFACES = 16


@dataclass(frozen=True)
class RemoteInterface:
    """An interface at an https URL. `document`: the OpenRPC document, if the description contains it. `servers`: those of the
    description, unchecked, for a document that names none."""

    kind: Literal["openrpc", "mcp"]
    url: str
    description: str = ""
    document: Mapping[str, Any] | None = field(default=None, repr=False)
    servers: Any = field(default=None, repr=False)


def read_interfaces(
    interfaces: Iterable[Mapping[str, Any]],
    *,
    location: Callable[[object], str | None],
    line: Callable[[object], str],
    here: str,
    servers: object,
) -> tuple[RemoteInterface, ...]:
    """Return the first 16 callable interfaces of a description. Others are skipped.

    `location`: returns the https URL of a reference, or None. `line`: makes foreign text one line. `here`: the URL of the
    description. `servers`: its own.
    """
    parsed = []
    for interface in interfaces:
        protocol = interface.get("protocol")
        if interface.get("type") != "StructuredInterface" or not isinstance(protocol, str):
            continue
        url, content, about = location(interface.get("url")), interface.get("content"), line(interface.get("description"))
        if protocol.lower() == "openrpc" and isinstance(content, dict):
            parsed.append(RemoteInterface("openrpc", url or here, about, content, servers))
        elif protocol.lower() == "openrpc" and url is not None:
            parsed.append(RemoteInterface("openrpc", url, about, None, servers))
        elif protocol.lower() == "mcp" and url is not None:
            parsed.append(RemoteInterface("mcp", url, about))
    return tuple(parsed[:MAX_INTERFACES])
