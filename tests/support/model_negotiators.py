"""Negotiators that ask the scripted language model, for both sides of its protocols."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from scripted_model import KEY, Script, ScriptedModel

from treaty_agent.negotiators.documents import Fetch
from treaty_agent.negotiators.model_negotiator import ModelNegotiator, ModelNegotiators
from treaty_agent.negotiators.negotiator import Capability, Implementation, NegotiationContext, Requirement
from treaty_agent.negotiators.openai import OpenAIModel
from treaty_handler import decode_json
from treaty_sandbox import SandboxLimits

SOURCE, DESTINATION = "did:wba:buyer.example", "did:wba:shop.example"
LIMITS = SandboxLimits(event=0.5, load=2.0)


@asynccontextmanager
async def opened(server: ScriptedModel, *, patience: float = 10.0, **options: Any) -> AsyncIterator[ModelNegotiators]:
    """Negotiators that ask this server, and do not wait before they ask again. `patience`: seconds for one answer."""

    async def no_wait(seconds: float) -> None:
        await asyncio.sleep(0)

    model = OpenAIModel(server.url, "scripted", api_key=KEY, timeout=patience, sleep=no_wait)
    negotiators = ModelNegotiators(model, **{"limits": LIMITS, **options})
    yield negotiators
    await negotiators.aclose()


def script(server: ScriptedModel, topic: str = "travel/train-tickets") -> Script:
    return next(script for script in server.scripts if script.topic == topic)


def source(negotiators: ModelNegotiators, script: Script) -> ModelNegotiator:
    requirement = Requirement(script.requirement, topic=script.topic)
    return negotiators.open(NegotiationContext("initiator", SOURCE, DESTINATION, requirement=requirement))


def destination(negotiators: ModelNegotiators, script: Script, documents: Fetch | None = None) -> ModelNegotiator:
    operations = decode_json(script.answers["handler"]["manifest"].encode())["operations"]
    offered = tuple(
        Capability(name, f"It does {name}.", operation["arguments"], operation["result"])
        for name, operation in operations.items()
    )
    return negotiators.open(NegotiationContext("responder", DESTINATION, SOURCE, capabilities=offered, documents=documents))


async def written(negotiators: ModelNegotiators, script: Script) -> tuple[ModelNegotiator, Implementation]:
    side = destination(negotiators, script)
    return side, await side.implement(script.document)
