"""Runs inside the environment of the official ANP SDK: an agent made with its server framework, over https.

In, one line: the path of a PEM file with certificate and key, and the DID document of the caller, which the SDK's verifier gets
instead of fetching it. Out: the port. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from anp.authentication import did_wba_verifier  # type: ignore[import-not-found]
from anp.openanp import AgentConfig, Context, anp_agent, interface  # type: ignore[import-not-found]
from anp.openanp.middleware import auth_middleware  # type: ignore[import-not-found]
from fastapi import FastAPI, Request  # type: ignore[import-not-found]

sys.path.insert(0, __file__.rpartition("/")[0])
from authentication import VERIFIER
from serving import serve


@anp_agent(AgentConfig(name="Hotel", did="did:wba:hotel.example", description="Finds rooms.", prefix=""))
class Hotel:
    """An agent with three methods."""

    @interface  # type: ignore[untyped-decorator]
    async def search(self, query: str, limit: int = 10) -> dict[str, Any]:
        """Find rooms."""
        return {"query": query, "limit": limit, "rooms": ["价格 12.5"]}

    @interface(mode="link")  # type: ignore[untyped-decorator]
    async def who(self, ctx: Context) -> dict[str, Any]:
        """Tell the caller's DID."""
        return {"did": ctx.did}

    @interface  # type: ignore[untyped-decorator]
    async def fail(self, text: str) -> dict[str, Any]:
        """Fail."""
        raise ValueError(text)


def main() -> None:
    """Serve until the input ends."""
    out, sys.stdout = sys.stdout, sys.stderr  # what the SDK prints is not an answer
    order = json.loads(sys.stdin.readline())
    app = FastAPI()
    app.include_router(Hotel.router())  # type: ignore[attr-defined]

    async def resolve(did: str) -> Any:
        return order["caller"]

    did_wba_verifier.resolve_did_wba_document = resolve

    @app.middleware("http")  # type: ignore[untyped-decorator]
    async def authenticate(request: Request, call_next: Any) -> Any:
        return await auth_middleware(request, call_next, VERIFIER)

    serve(app, order["certificate"], out)


if __name__ == "__main__":
    main()
