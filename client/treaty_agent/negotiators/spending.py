"""Share the budget of a language model among the parties that cause its cost.

    the own application                      the whole budget
    a proved peer with a deposit             at most SHARE of it
    a stranger                               at most SHARE for its network and, if it proved its DID, SHARE for that
    all strangers together                   at most STRANGERS: some is kept for peers with a deposit
    all peers together                       at most PEERS: some is kept for the own application

DIDs and claims cost nothing, and networks do: so many identities of one network have one share. A claimed DID has none.
"""

from __future__ import annotations

from .language_model import Budget
from .negotiator import ModelSpend, Payer

SHARE = 0.05
STRANGERS = 0.5
PEERS = 0.75
# Strangers choose their DIDs. Shares of which nothing is spent are dropped first; further parties have one share together.
MAX_PARTIES = 4096
_OTHERS = "others"


class Spending:
    """The shares of one budget. For one event loop."""

    def __init__(self, budget: Budget) -> None:
        """Begin with unused shares."""
        self._budget, self._strangers, self._peers = budget, budget.part(STRANGERS), budget.part(PEERS)
        self._shares: dict[str, Budget] = {}

    def budgets(self, payer: Payer | None) -> tuple[Budget, ...]:
        """Return the budgets that bound the requests for a party, beside the model's own; None: the own application."""
        if payer is None:
            return ()
        shares = (*(self._share(key) for key in payer.keys), self._peers)
        return shares if payer.has_deposit else (*shares, self._strangers)

    def snapshot(self) -> ModelSpend:
        """Return the spend of the present period."""
        budget, strangers = self._budget, self._strangers
        own = (budget.calls, budget.tokens, budget.seconds, budget.allowance)
        return ModelSpend(*own, strangers.calls, strangers.allowance.calls, budget.renewed_in)

    def _share(self, key: str) -> Budget:
        if key not in self._shares and len(self._shares) >= MAX_PARTIES:
            self._shares = {name: share for name, share in self._shares.items() if share.calls or share.seconds}
            key = key if len(self._shares) < MAX_PARTIES else _OTHERS
        return self._shares.setdefault(key, self._budget.part(SHARE))
