"""The agent payments.example, a bank: python -m agency.payments --home DIR …"""

from __future__ import annotations

from treaty_agent import Agent, CallContext, OperationError

from .ledger import Ledger
from .settings import AUDITOR, Settings, owner_of, serve

LIMIT = 44_000


class Bank:
    """The business of the bank: it reserves and captures each payment once, up to a limit."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    async def reserve(self, payment: str, amount: int, context: CallContext) -> None:
        if not self.ledger.is_of(payment, owner_of(context)):
            raise OperationError(403, "This payment is another payer's.")
        known = self.ledger.find(payment, "reserved")
        if known and known.price != amount:
            raise OperationError(409, "This key is that of another amount.")
        if amount > LIMIT:
            raise OperationError(402, "The account is too low.")
        self.ledger.add(payment, "reserved", amount, owner=owner_of(context))

    async def capture(self, payment: str, context: CallContext) -> None:
        known = self.ledger.find(payment, "reserved")
        if known is None or known.owner != owner_of(context).did:
            raise OperationError(403, "Nothing was reserved under this key by this payer.")
        self.ledger.add(payment, "captured", known.price, owner=owner_of(context))

    async def journal(self, after: int, context: CallContext) -> list[dict[str, object]]:
        if context.peer != AUDITOR:
            raise OperationError(403, "This journal is for the auditor.")
        return self.ledger.after(after)


def open_agent(agent: Agent, settings: Settings) -> None:
    bank = Bank(Ledger(settings.home))
    for uri in settings.uris("travel-payment"):
        for function in (bank.reserve, bank.capture, bank.journal):
            agent.provides(uri)(function)


if __name__ == "__main__":
    serve(open_agent)
