"""Say who voted for what in a decision: the voices of its transcript, with the ballots that stood before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from treaty_client.audit.decision import Transcript, Voice
from treaty_client.audit.reasons import choices_of
from treaty_consensus.kinds import NONE

from ..serving.history import VoterChoice

MAX_CLUSTERS = 16
MAX_VOICES = 64
UNKNOWN = ""
"""The choice of a voice whose documents the registry does not know."""


@dataclass(frozen=True)
class CountedVoice:
    """A principal's voice. `firsts`: its first choices with their weight. `dids`: its DIDs with a ballot."""

    voice: Voice
    firsts: Mapping[str, int]
    dids: Sequence[str]


@dataclass
class VoiceCluster:
    """The voices of one cluster. `by_choice`: the weight that has a choice first."""

    name: str
    weight: int = 0
    voices: int = 0
    by_choice: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, voice: CountedVoice) -> None:
        """Count a voice."""
        self.weight += int(voice.voice.counts)
        self.voices += 1
        for choice, weight in voice.firsts.items():
            self.by_choice[choice] += weight


def hear(transcript: Transcript, votes: Mapping[str, Sequence[VoterChoice]]) -> list[CountedVoice]:
    """Return the voices of a transcript with their first choices. `votes`: principal → the votes of its DIDs."""
    # A ballot names documents, and the count lines by the version that they speak.
    choices = {choice: choice for choice in choices_of(transcript)}
    choices |= {document: candidate.hash for document, candidate in transcript.spoken.items()}
    return [_heard(voice, votes.get(voice.principal, ()), choices) for voice in transcript.voices]


def clusters_of(voices: Sequence[CountedVoice]) -> tuple[list[VoiceCluster], VoiceCluster | None]:
    """Return the heaviest clusters, and the sum of the others if there are more."""
    clusters: dict[str, VoiceCluster] = {}
    for voice in voices:
        clusters.setdefault(voice.voice.cluster, VoiceCluster(voice.voice.cluster)).add(voice)
    ordered = sorted(clusters.values(), key=lambda cluster: (-cluster.weight, cluster.name))
    others = {cluster.name for cluster in ordered[MAX_CLUSTERS:]}
    if not others:
        return ordered, None
    rest = VoiceCluster(f"{len(others)} more clusters")
    for voice in voices:
        if voice.voice.cluster in others:
            rest.add(voice)
    return ordered[:MAX_CLUSTERS], rest


def _heard(voice: Voice, votes: Sequence[VoterChoice], choices: Mapping[str, str]) -> CountedVoice:
    if voice.by == "reports":
        # An implied ballot ranks one document as a rule. The one that the principal reported last stands for it.
        spoken = next((choices[vote.spoken] for vote in votes if vote.spoken and vote.spoken in choices), UNKNOWN)
        return CountedVoice(voice, {spoken: int(voice.counts)}, ())
    ballots = [vote for vote in votes if vote.tiers]
    firsts: defaultdict[str, int] = defaultdict(int)
    for vote in ballots:
        for choice, weight in _split(_first(vote.tiers or (), choices), int(voice.counts) // len(ballots)):
            firsts[choice] += weight
    return CountedVoice(voice, firsts or {UNKNOWN: int(voice.counts)}, [vote.did for vote in ballots])


def _first(tiers: Sequence[Sequence[str]], choices: Mapping[str, str]) -> Sequence[str]:
    """Return the first tier that names a choice of the count. A ballot that names none of them prefers no consensus."""
    # Of several versions of a line the first one counts.
    known_tiers = ([*dict.fromkeys(choices[choice] for choice in tier if choice in choices)] for tier in tiers)
    return next((tier for tier in known_tiers if tier), (NONE,))


def _split(tier: Sequence[str], weight: int) -> Iterator[tuple[str, int]]:
    for choice in tier:
        yield choice, weight // len(tier)
