"""Runs inside the environment of the official A2A SDK: how it reads and verifies an agent card, one call a line."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable
from typing import Any

import httpx
from a2a.client import A2ACardResolver
from a2a.client.client import ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.types import AgentCard
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.signing import (
    InvalidSignaturesError,
    NoSignatureError,
    create_signature_verifier,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from jwt.api_jwk import PyJWK


def read(card: dict[str, Any]) -> dict[str, Any]:
    """The card as the SDK's own type, strictly parsed; what it keeps of it."""
    parsed = ParseDict(card, AgentCard())
    validate_proto_required_fields(parsed)
    message_to_dict: dict[str, Any] = MessageToDict(parsed)
    return message_to_dict


def verify(card: dict[str, Any], keys: dict[str, str]) -> str:
    """Verify the card's signature by the SDK's verifier. `keys`: raw Ed25519 keys in base64 by their ids."""

    def provide(kid: str | None, jku: str | None) -> Any:
        x = base64.urlsafe_b64encode(base64.b64decode(keys[kid or ""])).rstrip(b"=").decode()
        return PyJWK({"kty": "OKP", "crv": "Ed25519", "x": x}, algorithm="EdDSA")

    try:
        create_signature_verifier(provide, ["EdDSA"])(ParseDict(card, AgentCard()))
    except (InvalidSignaturesError, NoSignatureError) as error:
        return type(error).__name__
    return "verified"


def resolve(base: str) -> dict[str, Any]:
    """What the SDK's resolver gets from a host, and what its client then says."""

    async def fetch() -> dict[str, Any]:
        async with httpx.AsyncClient() as client:
            card = await A2ACardResolver(client, base).get_agent_card()
            try:
                ClientFactory(ClientConfig(httpx_client=client)).create(card)
            except ValueError as error:
                return {"name": card.name, "client": str(error)}
            return {"name": card.name, "client": "made"}

    return asyncio.run(fetch())


FUNCTIONS: dict[str, Callable[..., Any]] = {function.__name__: function for function in (read, verify, resolve)}

if __name__ == "__main__":
    out = sys.stdout
    sys.stdout = sys.stderr  # what the SDK prints is not an answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": FUNCTIONS[request["call"]](**request["arguments"])}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=out, flush=True)
