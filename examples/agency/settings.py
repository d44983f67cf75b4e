"""The command line of all six agents, and how they serve."""

from __future__ import annotations

import argparse
import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treaty_agent import Agent, CallContext, OperationError, ProvedPeer
from treaty_consensus.protocol import parse_protocol_uri

AUDITOR = ProvedPeer("did:wba:auditor.example")


def owner_of(context: CallContext) -> ProvedPeer:
    """Return the caller, who owns the things that it makes. Raises `OperationError` (403) if it only claims its DID."""
    if not isinstance(context.peer, ProvedPeer):
        raise OperationError(403, "Prove your DID: anybody can claim it.")
    return context.peer


@dataclass(frozen=True)
class Settings:
    """`host`, `port`: where others reach the agent. `certificate`, `key`: PEM files for it. `protocols`: URIs to provide."""

    home: Path
    host: str
    port: int
    certificate: Path
    key: Path
    protocols: tuple[str, ...]

    def uris(self, name: str) -> list[str]:
        """Return the URIs of all versions of a protocol that are to be provided."""
        return [uri for uri in self.protocols if parse_protocol_uri(uri).name == name]

    @property
    def tls(self) -> ssl.SSLContext:
        """The server's side of TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def parser() -> argparse.ArgumentParser:
    """Return a parser of the settings."""
    made = argparse.ArgumentParser()
    for name, kind in (("home", Path), ("host", str), ("port", int), ("certificate", Path), ("key", Path)):
        made.add_argument(f"--{name}", type=kind, required=True)
    made.add_argument("--protocols", nargs="*", default=[])
    return made


def parse(given: argparse.Namespace) -> Settings:
    """Return the settings of a command line, and write the log to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return Settings(given.home, given.host, given.port, given.certificate, given.key, tuple(given.protocols))


def serve(open_agent: Callable[[Agent, Settings], None]) -> None:
    """Serve the agent of a home until terminated. `open_agent`: registers its functions."""
    settings = parse(parser().parse_args())

    async def main() -> None:
        async with Agent.from_home(settings.home) as agent:
            open_agent(agent, settings)
            await agent.serve("127.0.0.1", settings.port, tls=settings.tls, public=[f"wss://{settings.host}"])

    asyncio.run(main())
