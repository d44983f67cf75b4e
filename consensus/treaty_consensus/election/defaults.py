"""The constants that an electorate begins with; an operator may log others (`kinds.Parameters` says what each is)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..kinds import RULE, Blob, Credit, Parameters, Reputation

WEEK = 7 * 24 * 3600


def development_parameters() -> Parameters:
    """The parameters of a development electorate."""
    return Parameters(
        rule=RULE,
        electorate="development",
        horizon_epochs=13,
        candidate_pairs=3,
        candidate_clusters=2,
        candidate_share=20,
        max_candidates=32,
        quorum_share=4,
        cluster_share=3,
        provisional_share=2,
        over_none=(2, 1),
        over_incumbent=(3, 2),
        sustain_epochs=2,
        dormant_epochs=4,
        suspect_epochs=2,
        credit=Credit(report_share=8, epochs=8, pairs=4),
    )


def open_parameters(anchors: Iterable[str], suffix_list: Blob, *, epoch_seconds: int = WEEK) -> Parameters:
    """The parameters of an open electorate. `anchors`: registrable domains, at least `kinds.MIN_ANCHORS`."""
    return msgspec.structs.replace(
        development_parameters(),
        electorate="open",
        epoch_seconds=epoch_seconds,
        reputation=Reputation(
            anchors=tuple(sorted(set(anchors))),
            suffix_list=suffix_list,
            rounds=33,
            max_vouches=32,
            least_vouches=4,
            cap_share=3,
            loan_share=4,
            acquainted_epochs=3,
            mature_epochs=52,
            counterparties=3,
            counterparty_share=16,
        ),
    )
