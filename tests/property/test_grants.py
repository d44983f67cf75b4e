"""Grants: whatever is granted, taken back and renewed, the election and admission agree on those in force."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treaty_consensus.admit import find_grant, new_grant
from treaty_consensus.election.principals import PrincipalDirectory, SuffixList
from treaty_consensus.facts import Fact, IdentityFact, grant_key, identity_key

SUFFIXES = SuffixList(b"// ===BEGIN ICANN DOMAINS===\nexample\n// ===END ICANN DOMAINS===\n")
DOMAINS = ["alpha.example", "bravo.example"]
GUESTS = ["did:key:z6MktwupdmLXVVqTzCw4i46r4uGyosGXRnR3XjN4Zq7oMMsw", "did:wba:sub.alpha.example"]
DIDS = [*(f"did:{method}:{domain}" for domain in DOMAINS for method in ("wba", "web")), GUESTS[1]]
GRANT = st.tuples(st.just("grant"), st.sampled_from(DIDS[:-1]), st.sampled_from(GUESTS), st.booleans())
IDENTITY = st.tuples(st.just("identity"), st.sampled_from(DIDS), st.just(""), st.booleans())
STEPS = st.lists(st.one_of(GRANT, IDENTITY), max_size=24)


@given(STEPS)
def test_admission_and_election_know_the_same_grants(steps: list[tuple[str, str, str, bool]]) -> None:
    # The owners are known from the beginning. The guest with a domain gets its first identity later, or never.
    facts: dict[str, Fact] = {identity_key(did): IdentityFact("", 0, "", {}, 1, 0) for did in DIDS[:-1]}
    order: dict[tuple[str, str], int] = {}
    directory = PrincipalDirectory()
    directory.read_domains_by("list", SUFFIXES)
    for guest in GUESTS:
        directory.principal_of(guest)  # cached, so that each change must find it
    for index, (kind, did, guest, flag) in enumerate(steps):
        if kind == "grant":
            domain = did.rpartition(":")[2]
            facts[grant_key(domain, guest)] = new_grant(facts, did, guest, index, withdrawn=flag)
            directory.grant(domain, guest, did, withdrawn=flag)
            order[guest, domain] = index
        else:
            before = facts.get(identity_key(did))
            tenure = (before.tenure + flag) if isinstance(before, IdentityFact) else 1
            facts[identity_key(did)] = IdentityFact("", index, "", {}, tenure, 0)
            directory.identify(did, tenure)
        for one in GUESTS:
            lasting = [domain for domain in DOMAINS if find_grant(facts, domain, one)]
            expected = min(lasting, key=lambda domain: order[one, domain], default=None)
            assert directory.principal_of(one) == expected
