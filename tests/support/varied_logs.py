"""Build logs of many kinds for tests that recompute elections: small constants, odd names, and a bit of everything, by seed."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Literal

import msgspec
from signers import Signer, domain_signer, identity_body, key_signer
from simulated_log import ANCHORS, SUFFIX_LIST, LogBuilder, document_hash, protocol_uri

from treaty_consensus import did, kinds
from treaty_consensus.amendment import BOUNDS, HORIZON, check_amendment
from treaty_consensus.audit import Replay
from treaty_consensus.canonical import hex_digest
from treaty_consensus.election.defaults import development_parameters, open_parameters
from treaty_consensus.errors import Malformed, Refused
from treaty_consensus.facts import CONSTITUTION, ConstitutionFact
from treaty_consensus.kinds import NONE, Blob, Parameters

SUFFIX_LISTS = (
    "// ===BEGIN ICANN DOMAINS===\nexample\nco.example // second level\n*.wild.example\n!city.wild.example\nмосква\n"
    "хоста.example\n// ===END ICANN DOMAINS===\n// ===BEGIN PRIVATE DOMAINS===\nhosting.example\n// ===END PRIVATE DOMAINS===\n",
    "// ===BEGIN ICANN DOMAINS===\n\nexample\nhosting.example\nмосква\n// ===END ICANN DOMAINS===\n",
)
"""Two lists: under the second one `co.example` is a registrable domain and `hosting.example` a suffix."""
ODD = (
    *("co.example", "shop.co.example", "a.wild.example", "b.a.wild.example", "city.wild.example", "hosting.example"),
    *("me.hosting.example", "xn--80adxhks", "xn--d1acufc.xn--80adxhks", "xn--d1acufc.xn--80atdjx.example"),
    "sub.anchor-03.example",
)
TOPICS = ("games/chess", "games/go", "music", "zoo")


def blobs() -> dict[str, bytes]:
    """Return the suffix lists by digest."""
    return {hex_digest(text.encode()): text.encode() for text in SUFFIX_LISTS}


def suffix_list(number: int) -> Blob:
    """Return one of the suffix lists as a blob."""
    data = SUFFIX_LISTS[number].encode()
    return Blob(hex_digest(data), len(data))


def varied_parameters(random: Random, electorate: str, rule: kinds.Rule) -> Parameters:
    """Return parameters with small constants, so that every threshold is met now and then."""
    if electorate == "open":
        anchors = [*random.sample(ANCHORS, 15), "alpha.example"]
        base = open_parameters(tuple(sorted(anchors)), suffix_list(random.random() < 0.2), epoch_seconds=random.randint(1, 9))
        reputation = msgspec.structs.replace(
            base.reputation or SUFFIX_LIST,  # an open electorate has it
            rounds=random.choice((1, 3, 33)),
            max_vouches=random.choice((1, 2, 4, 32)),
            least_vouches=random.randint(1, 4),
            cap_share=random.randint(2, 4),
            loan_share=random.randint(1, 5),
            acquainted_epochs=random.choice((1, 1, 2)),
            mature_epochs=random.choice((1, 3, 52)),
            counterparties=random.randint(1, 4),
            counterparty_share=random.choice((1, 4, 16, 64)),
        )
        base = msgspec.structs.replace(base, reputation=reputation)
    else:
        base = development_parameters()
    return msgspec.structs.replace(
        base,
        rule=rule,
        memory_horizons=None if rule == kinds.RULES[0] else random.choice((1, 2, 8)),
        horizon_epochs=random.choice((1, 2, 3, 5)),
        candidate_pairs=random.choice((1, 1, 2, 3)),
        candidate_clusters=random.choice((1, 2)),
        candidate_share=random.choice((2, 5, 20)),
        max_candidates=random.choice((1, 2, 3, 4, 32)),
        quorum_share=random.choice((2, 4, 9)),
        cluster_share=random.choice((1, 2, 3)),
        provisional_share=random.choice((1, 2, 3)),
        sustain_epochs=random.choice((1, 2, 3)),
        dormant_epochs=random.choice((1, 2, 4)),
        suspect_epochs=random.choice((1, 2, 3)),
        over_none=random.choice(((1, 1), (2, 1), (3, 2))),
        over_incumbent=random.choice(((1, 1), (3, 2), (2, 1))),
        credit=msgspec.structs.replace(
            base.credit,
            report_share=random.choice((1, 8, 2**16)),
            epochs=random.choice((1, 2, 4)),
            pairs=random.choice((1, 4)),
        ),
    )


def amended_parameters(random: Random, before: Parameters) -> Parameters:
    """Return parameters that may follow those in force: most differ in a constant or two, some in none."""
    while True:
        with suppress(Refused, Malformed, msgspec.ValidationError):
            after = moved_parameters(random, before)
            after.check()
            check_amendment(before, after)
            return after


def moved_parameters(random: Random, before: Parameters) -> Parameters:
    """Return parameters in which a few constants moved a bit, so that bounds are met from both sides.

    Raises `msgspec.ValidationError` for a value that no parameters have.
    """
    raw = msgspec.to_builtins(before)
    for bound in random.sample([bound for bound in BOUNDS if bound.constant != HORIZON], random.choice((0, 1, 1, 2))):
        *outer, name = bound.constant.split(".")
        place = raw[outer[0]] if outer else raw
        if isinstance(place[name], tuple | list):
            place[name] = [random.randint(1, 5), random.randint(1, 5)]
        else:
            nearby = (place[name] // 2, place[name] * 2, place[name] - 1, place[name] + 1)
            place[name] = random.choice(nearby) + random.choice((0, 0, -1, 1))
    if random.random() < 0.3:
        anchors = set(raw["reputation"]["anchors"])
        anchors -= set(random.sample(sorted(anchors), random.choice((0, 1, 3, 4))))
        anchors |= set(
            random.sample((*ANCHORS, "bravo.example", "charlie.example", "delta.example"), random.choice((0, 1, 3, 4)))
        )
        raw["reputation"]["anchors"] = sorted(anchors)
    if random.random() < 0.1:
        raw["reputation"]["suffix_list"] = msgspec.to_builtins(suffix_list(1))
    return msgspec.convert(raw, Parameters)


class VariedLog(LogBuilder):
    """A log in which agents do whatever a seed says."""

    def __init__(self, seed: int, electorate: str = "", rule: kinds.Rule | None = None) -> None:
        self.random = Random(seed)
        drawn = self.random.choice((kinds.RULES[0], kinds.RULES[-1], kinds.RULES[-1]))
        self.rule: kinds.Rule = rule or drawn
        first = electorate or self.random.choice(("development", "open", "open"))
        super().__init__(varied_parameters(self.random, first, self.rule), replay=Replay(lambda digest: blobs()[digest]))
        names = (*ANCHORS[: self.random.choice((6, 12, 16))], "alpha.example", *(f"new-{n}.example" for n in range(4)), *ODD)
        self.roots = [domain_signer(name) for name in names]
        more = [domain_signer("anchor-01.example", "web"), domain_signer("anchor-02.example", "web")]
        paths = [domain_signer("anchor-00.example:users:bob"), domain_signer("me.example%3A8443")]
        self.agents = (*self.roots, *more, *paths, *(key_signer(f"guest {n}") for n in range(4)))
        self.documents: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        self.uris: dict[str, tuple[Signer, str]] = {}
        self.releases: dict[str, list[tuple[Signer, str, str, kinds.Base]]] = {topic: [] for topic in TOPICS}
        self.crowd = self.random.sample(self.agents, self.random.randint(6, 16))
        self.fickle = self.random.choice((0.05, 0.3, 1))
        self.fashion: dict[str, str] = {}
        self.granted: set[tuple[str, str]] = set()
        self.lapsed: set[str] = set()
        """DIDs with a new tenure, which may not publish or grant for thirty days."""

    def fill(self, epochs: int, actions: int = 40) -> None:
        """Let epochs pass; in some of them hardly anything happens."""
        for topic in TOPICS[:2]:
            for _ in range(2):
                self.issue(topic)
        for _ in range(epochs):
            if self.random.random() < 0.15:
                self.amend()
            busy = self.random.choice((0, 0.1, 1, 1, 1, 1))
            for topic, documents in self.documents.items():
                if documents and (topic not in self.fashion or self.random.random() < self.fickle):
                    self.fashion[topic] = self.random.choice(documents)
            for _ in range(int(actions * busy)):
                self.act(self.fashion)
            self.add(identity_body(domain_signer(f"late-{len(self.leaves)}.example")), self.operator)  # time passes
            for _ in range(9):
                self.grant()
            if self.random.random() < 0.3:
                self.lapse()
            self.close()

    def amend(self) -> None:
        """Announce parameters: any, or, where those in force bound them, ones that differ a little."""
        constitution = self.replay.facts.get(CONSTITUTION)
        before = constitution.in_force if isinstance(constitution, ConstitutionFact) else None
        electorate = self.random.choice(("development", "open", "open"))
        self.rule = self.random.choice((self.rule, kinds.RULES[-1]))
        if before is not None and before.electorate == "open":
            self.add(amended_parameters(self.random, before), self.operator)
        else:
            self.add(varied_parameters(self.random, electorate, self.rule), self.operator)

    @property
    def voters(self) -> list[Signer]:
        """Return those of the crowd that need not wait."""
        return [one for one in self.crowd if one.did not in self.lapsed]

    def act(self, fashion: dict[str, str]) -> None:
        """Do one thing."""
        random = self.random
        choice = random.random()
        topic = random.choice(list(fashion))
        if choice < 0.04 * self.fickle:
            self.issue(random.choice(TOPICS))
        elif choice < 0.62:
            self.meet(topic, fashion[topic])
        elif choice < 0.82:
            choices = [*self.documents[topic], document_hash("never published"), NONE]
            ranked = random.sample(choices, random.choice((0, 1, 1, 2, 3)) if len(choices) > 2 else 1)
            if random.random() > self.fickle:
                ranked = [fashion[topic]]
            tied = random.random() < 0.3 and len(ranked) > 1
            tiers: list[str | tuple[str, ...]] = [tuple(ranked[:2]), *ranked[2:]] if tied else [*ranked]
            self.vote(random.choice(self.voters), *tiers, topic=topic)
        elif choice < 0.95:
            one = random.choice(self.voters)
            other = random.choice([other for other in self.crowd if other.did != one.did])
            self.vouch(one, other, withdrawn=random.random() < 0.15)
        elif self.uris:
            uri = random.choice(list(self.uris))
            states: tuple[Literal["active", "deprecated", "yanked", "revoked"], ...] = "active", "deprecated", "yanked", "revoked"
            state = random.choices(states, (1, 2, 1, 1))[0]
            successor = random.choice([None, *self.uris, "https://elsewhere.example/protocols/a.example/p/1.0"])
            self.add(kinds.Status(uri, state, successor=successor if successor != uri else None), self.uris[uri][0])

    def meet(self, topic: str, fashion: str) -> None:
        """Let two agents report, mostly the document in fashion; sometimes they equivocate."""
        random = self.random
        one, other = random.sample(self.crowd, 2)
        document = fashion if random.random() < 0.9 - self.fickle / 2 else random.choice(self.documents[topic])
        if random.random() < 0.04:
            document = document_hash("never published")
        nid = self.report(one, other, document, topic=topic, outcome="failed" if random.random() < 0.15 else "agreed")
        if random.random() < 0.01:
            self.report(other, one, document_hash("another"), topic=random.choice(TOPICS), nid=nid)

    def issue(self, topic: str) -> None:
        """Publish a document; sometimes one that is published already."""
        able = [one for one in self.agents if "%" not in one.did and "key:" not in one.did and one.did not in self.lapsed]
        agent = self.random.choice(able)
        name, version, base = f"p{len(self.leaves)}", "1.0", None
        text = name if self.random.random() < 0.8 or not self.documents[topic] else None
        releases = [release for release in self.releases[topic] if release[0] in able]
        if releases and self.random.random() < 0.5:
            # A change of an earlier document, mostly a compatible one of the same publisher.
            agent, changed, version, base = self.random.choice(releases)
            name = changed if self.random.random() < 0.9 else name
            version = f"{version.partition('.')[0] if self.random.random() < 0.9 else 2}.{len(self.leaves)}"
            text = text and f"{name} {version}"
        document = self.publish(agent, name, version, topic=topic, text=text or f"p{self.random.randint(0, 40)}", base=base)
        if document not in self.documents[topic]:
            self.documents[topic].append(document)
        uri = protocol_uri(agent, name, version)
        self.uris[uri] = agent, topic
        self.releases[topic].append((agent, name, version, kinds.Base(uri, document)))

    def lapse(self) -> None:
        """Let a domain change hands: another key, and a new tenure."""
        domains = [one for one in self.crowd if "key:" not in one.did and one.did in self._identified]
        if domains:
            before = self.random.choice(domains)
            self.lapsed.add(before.did)
            owner = self.renew(before, f"owner {len(self.leaves)}")
            self.crowd = [owner if one.did == owner.did else one for one in self.crowd]
            self.roots = [owner if one.did == owner.did else one for one in self.roots]
            self.agents = tuple(owner if one.did == owner.did else one for one in self.agents)
            self.uris = {uri: (owner if one.did == owner.did else one, topic) for uri, (one, topic) in self.uris.items()}

    def grant(self) -> None:
        """Let an agent grant its namespace to another one, mostly to a made-up one, which only lets time pass."""
        owner = self.random.choice([one for one in self.roots if one.did not in self.lapsed])
        other = self.random.choice(self.agents).did if self.random.random() < 0.1 else f"did:wba:x{len(self.leaves)}.example"
        self.identify(owner)
        if other != owner.did and (owner.did, other) not in self.granted:
            self.granted.add((owner.did, other))
            self.add(kinds.Grant(did.parse_did(owner.did).namespace, other), owner)
