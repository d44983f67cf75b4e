"""What one reputation costs in dollars, beside the published measure of an on-chain reputation registry.

The measure: Xiong, Li, Wei, Wang, Knottenbelt & Wang, *Can Trustless Agents Be Trusted? An Empirical Study of the ERC-8004
Decentralized AI Agent Ecosystem*, arXiv:2606.26028, 2026. It asks four things of a reputation, and prices the fourth: the median
cost of the feedback that makes or breaks one. A domain has a list price here; a member that is corrupted or bribed has none, so
such costs stay numbers of members. That is the assumption that a reader may want to change.
"""

from __future__ import annotations

from collections.abc import Iterator

from .laboratory import FLOOD, SPENDINGS, TURNOUTS
from .lines import Shown, table_of

PUBLISHED = {"Ethereum": 0.055, "BNB Smart Chain": 0.0042, "Base": 0.0027}
"""Dollars, the median cost of making or breaking one reputation there."""
DOMAIN = (5, 12)
"""Dollars a year: the list prices of a registrable domain, from a cheap top-level domain to `.com`."""

SIZES = (300, 3000)
MOST_DOMAINS = max(SPENDINGS)


def section(shown: Shown) -> Iterator[str]:
    """The table of a run with the figures for it."""
    if not shown.find("flood", 300, "promote", 1.0) or not shown.find("bribery", 300, "vouches", 1.0, "1 best"):
        return
    yield "## One reputation, in dollars"
    yield (
        "The published measure of an on-chain reputation registry (arXiv:2606.26028) asks four things of a reputation. Here are "
        f"the same four of this design, in the same unit. A registrable domain is taken at its list price, ${DOMAIN[0]} to "
        f"${DOMAIN[1]} a year, and must be held for a year before it counts whole. Subdomains are free, also those under the "
        "suffixes of hosting companies: only the ICANN section of the Public Suffix List makes principals, so all customers of "
        "a company are one principal or none. Corrupted and bribed members have no list price; they are counted. Keys, "
        "signatures and statements are taken as free."
    )
    yield table_of(["asked", "measured on chain", "this design"], list(_criteria()))
    yield table_of(["to make or break one", "dollars, here for each year", "members, of 300 / 3,000"], list(_costs(shown)))


def _criteria() -> Iterator[list[str]]:
    yield [
        "commensurability: one thing on one scale",
        "values without bounds or common meaning",
        "weight in full voices, standing in full credits, one formula for all",
    ]
    yield [
        "robustness: a minority does not move it",
        "a mean, moved by one record",
        "capped by principal and by cluster; the shares above",
    ]
    yield [
        "groundedness: a record is an interaction that can be verified",
        "records are rarely tied to an interaction that can be verified",
        "both sides sign a report of one negotiation; that it took place is their word",
    ]
    yield [
        "economic soundness: to fake it costs more than it yields",
        "a fraction of a cent to some cents",
        "below; the yield is not measured",
    ]


def _costs(shown: Shown) -> Iterator[list[str]]:
    low, high = DOMAIN

    def dollars(domains: int) -> str:
        return f"{low * domains:,} to {high * domains:,}"

    def corrupted(goal: str) -> str:
        # At the lowest turnout that is measured, where it takes least.
        cells = [shown.share("corrupt", size, goal, TURNOUTS[-1], "best") for size in SIZES]
        return f"{' / '.join(filter(None, cells))} corrupted"

    most = f"at most {dollars(MOST_DOMAINS)}"
    voice = " / ".join(filter(None, (shown.number("bribery", size, "vouches", 1.0, "1 best") for size in SIZES)))
    on_chain = f"make or break one on chain, the median ({', '.join(PUBLISHED)})"
    yield [on_chain, " / ".join(f"{price:g}" for price in PUBLISHED.values()), "0"]
    yield ["make a principal's, with did:keys or subdomains", "0, and no number of them is enough", "0"]
    yield ["make a principal's, with domains alone", f"{dollars(FLOOD)} for {FLOOD:,} are not enough", "0"]
    yield ["make a full voice", dollars(1), f"{voice} that sell a vouch"]
    yield ["make its standing, half a full credit", dollars(2), "as many for each of two; endpoints sign for nothing"]
    yield ["break a principal's, by reports", "not possible: no report of others lowers it", "–"]
    yield ["warn of a document for two epochs", "0", "three pairs in two clusters that sign a failure"]
    yield ["make a document the consensus", most, corrupted("promote")]
    yield ["keep a document from it", most, corrupted("block")]
    yield ["break a consensus", most, corrupted("unseat")]
