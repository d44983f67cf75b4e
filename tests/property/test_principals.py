"""Principals that are looked up together are those that are looked up one by one, for any history of grants and tenures."""

from __future__ import annotations

import msgspec
import numpy as np
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_log import SUFFIXES

from treaty_consensus.did import did_key
from treaty_consensus.election.principals import PrincipalDirectory, SavedDirectory, SuffixList

OWNERS = ["did:wba:alpha.example", "did:wba:beta.co.example", "did:wba:sub.gamma.example", did_key(bytes(32))]
AGENTS = ["did:wba:alpha.example:one", "did:wba:other.example:two", "did:web:beta.co.example:three", "did:wba:delta.example%3A81"]
DIDS = [*OWNERS, *AGENTS]
NAMESPACES = ["alpha.example", "beta.co.example", "sub.gamma.example", "co.example"]
LISTS = [SuffixList(SUFFIXES), SuffixList(b"// ===BEGIN ICANN DOMAINS===\nexample\ngamma.example\n")]

grants = st.tuples(st.just("grant"), st.sampled_from(NAMESPACES), st.sampled_from(DIDS), st.sampled_from(OWNERS), st.booleans())
tenures = st.tuples(st.just("identify"), st.sampled_from(DIDS), st.integers(1, 3))
asked = st.tuples(st.just("ask"), st.sampled_from(DIDS))
lists = st.tuples(st.just("list"), st.integers(0, 1))
histories = st.lists(st.one_of(grants, tenures, asked, lists), max_size=30)


def play(directory: PrincipalDirectory, step: tuple[object, ...]) -> None:
    match step:
        case "grant", str(namespace), str(did), str(owner), bool(withdrawn):
            directory.grant(namespace, did, owner, withdrawn=withdrawn)
        case "identify", str(did), int(tenure):
            directory.identify(did, tenure)
        case "list", int(number):
            directory.read_domains_by(str(number), LISTS[number])


def together(directory: PrincipalDirectory) -> dict[str, str | None]:
    """The principals of all DIDs, looked up at once."""
    numbers = directory.owners(np.array([directory.number(did) for did in DIDS]))
    names = {int(number): directory.principal_of(did) for did, number in zip(DIDS, numbers, strict=True)}
    assert names.get(-1) is None
    return {did: names[int(number)] for did, number in zip(DIDS, numbers, strict=True)}


@settings(max_examples=examples(400), deadline=None)
@given(histories)
def test_look_ups_together_and_one_by_one_agree(history: list[tuple[object, ...]]) -> None:
    directory, plain = PrincipalDirectory(), PrincipalDirectory()
    for electorate in (directory, plain):
        electorate.read_domains_by("0", LISTS[0])
    for step in history:
        for electorate in (directory, plain):
            play(electorate, step)
        if step[0] == "ask":
            assert together(directory) == {did: plain.principal_of(did) for did in DIDS}
    expected = {did: plain.principal_of(did) for did in DIDS}
    assert together(directory) == expected
    resumed = PrincipalDirectory()
    resumed.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(directory.saved()), type=SavedDirectory))
    resumed.read_domains_by(directory.suffix_digest, LISTS[int(directory.suffix_digest or 0)])
    assert together(resumed) == expected
