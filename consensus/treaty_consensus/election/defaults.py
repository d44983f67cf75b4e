"""Provide the default constants of an electorate. An operator may log other ones; `kinds.Parameters` describes each constant."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..kinds import RULE, Blob, Credit, Parameters, Reputation

# The default length of an epoch in an open electorate.
WEEK = 7 * 24 * 3600


def development_parameters() -> Parameters:
    """Return the parameters of a development electorate."""
    return Parameters(
        rule=RULE,
        electorate="development",
        # A quarter of a year, with epochs of a week.
        horizon_epochs=13,
        # Three pairs in two clusters: no single cluster can nominate a document alone.
        candidate_pairs=3,
        candidate_clusters=2,
        candidate_share=20,
        max_candidates=32,
        # A quorum is a quarter of W, and no cluster fills more than a third of it.
        quorum_share=4,
        cluster_share=3,
        provisional_share=2,
        # A consensus needs two thirds against NONE, and three fifths against an incumbent: changing costs all agents an
        # update.
        over_none=(2, 1),
        over_incumbent=(3, 2),
        # One epoch more than the first, so that a single surge of votes decides nothing.
        sustain_epochs=2,
        dormant_epochs=4,
        suspect_epochs=2,
        credit=Credit(report_share=8, epochs=8, pairs=4),
        # As long as a ballot takes to fade to nothing: in a thin topic two agents meet once in several horizons.
        memory_horizons=8,
    )


def open_parameters(anchors: Iterable[str], suffix_list: Blob, *, epoch_seconds: int = WEEK) -> Parameters:
    """Return the parameters of an open electorate.

    `anchors`: registrable domains, at least `kinds.MIN_ANCHORS`.
    `suffix_list`: the blob of the Public Suffix List.
    """
    return msgspec.structs.replace(
        development_parameters(),
        electorate="open",
        epoch_seconds=epoch_seconds,
        reputation=Reputation(
            anchors=tuple(sorted(set(anchors))),
            suffix_list=suffix_list,
            # After 33 rounds the error by the number of rounds is below one unit of 1 / ONE (`trust`).
            rounds=33,
            max_vouches=32,
            least_vouches=4,
            cap_share=3,
            loan_share=4,
            acquainted_epochs=3,
            # A year, with epochs of a week: a new domain has to wait for its full weight.
            mature_epochs=52,
            counterparties=3,
            counterparty_share=16,
        ),
    )
