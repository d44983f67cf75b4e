"""Have the conditions of the rule before, `schulze-margins-v2`, so that the logs that followed it stay auditable.

    κ    = ⌈W / (quorum_share · cluster_share)⌉                 the most that one cluster counts for; 0 only without ballots
    q    = cluster_share · κ                                    the quorum: that many full clusters
    Q(c) = Σ over clusters of min(weight ranking c over N, κ)   the support; Q'(c), the opposition, is the same for N over c

    candidate     candidate_share · R ≥ W, in place of W − w(c)
    provisional   first of the field in Schulze's order; provisional_share · Q(c) ≥ q; V[c][N] > V[N][c]
    consensus     provisional for sustain_epochs; Q(c) ≥ q; V[c][N] beats V[N][c] by over_none; the conditions against others
    kept          the incumbent while V[i][N] ≥ V[N][i] and provisional_share · Q(i) ≥ q
    repealed      the incumbent once V[N][i] beats V[i][N] by over_none and Q'(i) ≥ q for sustain_epochs

What else differs stands where it is done: under that rule each document is a line (`decision`), a ballot hides the use of its
principal until it has faded (`ballot.votes`), what every publisher withdrew is not named (`ballot.implied_ballots`), a new tenure
changes nothing (`electorate`), and the heaviest topics are counted alone (`agenda`).

Specification: `docs/specification/election-v2.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..kinds import NONE
from .rule import DocumentState, Poll, Shortfall, ceiling, least, present, ratio


class EarlierPoll(Poll):
    """Evaluate the conditions of `schulze-margins-v2`."""

    @property
    def cap(self) -> int:
        """Return κ."""
        # Rounded up. Rounded down, the remainder of one cluster would be a quorum while W is small. The quorum is a
        # multiple of it, so full clusters cannot miss it by one.
        return ceiling(self.count.total, self.parameters.quorum_share * self.parameters.cluster_share)

    def support(self, document: str) -> int:
        """Return Q(c)."""
        return self._capped(self.count.above[self.number(document)])

    def opposition(self, document: str) -> int:
        """Return Q'(c)."""
        return self._capped(self.count.below[self.number(document)])

    def quorum(self, document: str) -> int:
        """Return q, the same for each document."""
        return self.parameters.cluster_share * self.cap

    def opposing_quorum(self, document: str) -> int:
        """Return q."""
        return self.quorum(document)

    def provisional_shortfalls(self, document: str) -> list[Shortfall]:
        """List the conditions that a candidate misses to be provisional."""
        return self.not_first(document) + self._not_kept(document, least_lead=1)

    def consensus_shortfalls(self, document: str, current: DocumentState) -> list[Shortfall]:
        """List the conditions that a provisional candidate misses to be the consensus."""
        held = least("provisional-epochs", current.provisional, self.parameters.sustain_epochs)
        quorum = least("quorum", self.support(document), self.quorum(document))
        lead = ratio("ratio-over-none", *self.preferring(document), self.parameters.over_none, NONE)
        return present(held, quorum, lead) + self.not_ahead(document, current)

    def kept_shortfalls(self, document: str) -> list[Shortfall]:
        """List the conditions that the incumbent misses to be kept."""
        return self._not_kept(document, least_lead=0)

    def _capped(self, by_cluster: Mapping[str, int]) -> int:
        cap = self.cap
        return sum(min(weight, cap) for weight in by_cluster.values())

    def _not_kept(self, document: str, least_lead: int) -> list[Shortfall]:
        over, under = self.preferring(document)
        needed = ceiling(self.quorum(document), self.parameters.provisional_share)
        share = least("provisional-quorum", self.support(document), needed)
        return present(share, least("majority-over-none", over, under + least_lead, NONE))
