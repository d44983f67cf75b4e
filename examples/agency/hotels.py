"""The agent hotels.example: python -m agency.hotels --home DIR …"""

from __future__ import annotations

from treaty_agent import Agent

from .ledger import Ledger
from .settings import Settings, serve
from .vendor import Vendor


def open_agent(agent: Agent, settings: Settings) -> None:
    Vendor(Ledger(settings.home), price=14_000, seats=10).open(agent, settings)


if __name__ == "__main__":
    serve(open_agent)
