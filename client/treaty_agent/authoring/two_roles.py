"""Write the manifest of a protocol without code in which a requester calls the operations of a provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REQUESTER, PROVIDER = "requester", "provider"
NOT_CONFORMING = "The request does not conform to the protocol."
"""The meaning of 400, which a provider answers to any request."""
_REQUEST = {"id": "$id", "type": "request", "operation": "$operation", "arguments": "$arguments"}
_ERROR = {"id": "$id", "type": "error", "code": "$code", "message": "$message"}
_FORMS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "request": {"response": {"id": "$id", "type": "response", "result": "$result"}, "error": _ERROR},
    "stream": {
        "item": {"id": "$id", "type": "item", "item": "$item"},
        "end": {"id": "$id", "type": "end"},
        "error": _ERROR,
        "more": {"id": "$id", "type": "more", "count": "$count"},
        "cancel": {"id": "$id", "type": "cancel"},
    },
}


def manifest_of(operations: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest. `operations`: requests and streams, each as in a manifest."""
    forms: dict[str, Any] = {"request": _REQUEST}
    for operation in operations.values():
        forms |= _FORMS[operation.get("kind", "request")]
    return {
        "operations": dict(operations),
        "roles": {
            REQUESTER: {"peer": PROVIDER, "calls": [*operations], "invokes": []},
            PROVIDER: {"peer": REQUESTER, "calls": [], "invokes": [*operations]},
        },
        "messages": {"*": forms},
    }
