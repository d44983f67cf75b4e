"""`treaty vote`, `treaty topic`, `treaty topics`: take part in an election, show its result, and list the topics of a registry.

`treaty topic --explain` shows the pairs of agents that reported the protocols of a topic, by the registry's account and for
display only: a decision counts reports from proven leaves.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from treaty_client.audit.decision import Transcript, read_transcript
from treaty_client.audit.reasons import Names, ReportedPairs, choice_name, reported, share
from treaty_client.audit.strength import numbers, turnout_numbers
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.topic import TopicProtocol, TopicView
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.replies import Reach, TopicPage, TopicSummary
from treaty_client.statements.vote import Vote, parse_tiers
from treaty_client.statements.vote import vote as cast_vote
from treaty_consensus import statement
from treaty_consensus.canonical import parse_decimal
from treaty_consensus.codes import BallotCode
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.kinds import Parameters, Report
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle, decode_bundle
from treaty_consensus.printable import printable, short
from treaty_consensus.protocol import MAX_URI, parse_protocol_uri
from treaty_consensus.statement import Statement

from .context import Options, run
from .delivery import shown
from .elected import strength_lines, topic_views
from .explanation import explain as explain_transcript
from .renewals import check_votes, keeping
from .standing import own_weightless
from .values import Topic, Uri


def vote(topic: Topic = "", /, *tiers: Uri, check: bool = False, via: tuple[str, ...] = (), options: Options = Options()) -> None:
    """Vote on the consensus protocol of a topic. Your ballot replaces your former one; `treaty withdraw vote` takes it back.

    In an open electorate a vote fades: half of it is gone after `horizon_epochs` epochs, all after eight times as many. Using
    what you voted for renews it: the reports that your agent signs. A changed vote counts half at first.

    Parameters
    ----------
    topic
        Such as commerce/product-info.
    tiers
        Best first; each argument is one tier, commas tie. A choice is a protocol's URI, a document's hash, or none.
    check
        Send nothing. Say of your newest 32 ballots, or in the topic, whether your use renews the vote or contradicts it, and what
        to do; by the registry's account.
    via
        URL#KEY of a witness that stamps the ballot before the registry gets it. A registry that leaves out a ballot stamped an
        hour before an epoch closes is caught by `treaty audit`. May be repeated: name all witnesses of the log's parameters.
    """
    if check:
        check_votes(topic, options)
        return
    if not topic or not tiers:
        raise Refused(BallotCode.TIERS, "A vote needs your choices, best first.", fix="treaty vote TOPIC URI none")
    cast(topic, tiers, options, via)


def cast(topic: str, tiers: Sequence[str], options: Options, via: Sequence[str]) -> None:
    """Cast a ballot; without tiers withdraw it. `via`: the witnesses that stamp it, in place of the policy's."""

    async def work() -> tuple[Vote, Names, list[str]]:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            origin = options.trusted().name.origin
            # The topic with its proofs: the registry's list could give a URI another document's hash, and the vote would count
            # for that.
            (view,) = await topic_views(fetcher, topic, origin)
            client, head = fetcher.client(origin), fetcher.head(origin)
            now = int(time.time())
            identity = options.identity()
            stamping, ranked = fetcher.stamping(origin, via), parse_tiers(tiers, view)
            cast = await cast_vote(client, head, identity, topic, ranked, origin=origin, now=now, stamping=stamping)
            notes = await keeping(client, topic) if tiers else []
            return cast, _names(view), [*notes, *await own_weightless(client, identity.did)]

    done, names, notes = run(work())
    sent, lines = shown(done.delivery, done.epoch)
    value = {
        "topic": topic,
        "statement": done.statement.id,
        "seq": done.ballot.seq,
        "tiers": [list(tier) for tier in done.ballot.tiers],
        **sent,
        "weightless": bool(notes),
    }
    order = " > ".join(" = ".join(choice_name(choice, names) for choice in tier) for tier in done.ballot.tiers)
    sentence = (
        f"Voted in [bold]{escape(topic)}[/]: {escape(order)}" if order else f"Took back the ballot in [bold]{escape(topic)}[/]."
    )
    voted = f"[green]✓[/] {sentence}"
    options.output.result(value, voted, *lines, *notes)


def topic(topic: Topic, /, *, explain: bool = False, options: Options = Options()) -> None:
    """Show a topic: its candidates, the newest decision, and the comparison of each pair by the voters. The decision's proof is
    checked.

    Parameters
    ----------
    topic
        Such as commerce/product-info.
    explain
        Explain the place of each protocol and its missing conditions: votes, quorum, epochs. The operator signed these numbers;
        `treaty audit` recomputes them. Of protocols that are no candidates, show the pairs that reported them so far, by the
        registry's account.
    """

    async def work() -> tuple[TopicView, dict[str, Any], ReportedPairs | None, list[str]]:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            origin = options.trusted().name.origin
            client = fetcher.client(origin)
            # The view is proved; the other answers are for display, and no conclusion rests on them.
            (view,), topic_page = await topic_views(fetcher, topic, origin), await client.topic(topic)
            # A home without an identity only reads.
            own = explain and options.identity_file.exists()
            pairs = await read_pairs(client, topic) if explain else None
            return view, topic_page, pairs, await own_weightless(client, options.identity().did) if own else []

    view, shown_topic, pairs, notes = run(work())
    transcript = read_transcript(view.transcript) if view.transcript is not None else None
    decided = "no decision yet" if view.epoch is None else f"decided at the end of epoch {view.epoch}"
    head = f"[bold]{escape(topic)}[/]  [dim]{escape(str(shown_topic.get('electorate', '')))} electorate, {decided}[/]"
    value = {**shown_topic, **_decided(view, transcript)}
    if pairs is not None:
        value["pairs"] = {document: sorted(agents) for document, agents in pairs.by_document.items()}
        value["needed_pairs"] = pairs.needed
    notes_text = [*_reasons(view, transcript), *_reported(view, pairs)] if explain else strength_lines(view, transcript)
    options.output.result(value, head, *_rows(view, transcript), *notes_text, *notes)


def _rows(view: TopicView, transcript: Transcript | None) -> Iterable[str]:
    """Yield a line for each protocol."""
    names = _names(view)
    for p in view.protocols:
        yield f"{p.state:<12} {short(p.hash)}  {escape(p.uri)}{_marks(p.hash, transcript, names)}{_status(p)}"
    for p in view.taken_back:
        elected = "  [yellow]it was elected: agents refuse it[/]" if p.hash == view.consensus else ""
        yield f"{'–':<12} {short(p.hash)}  {escape(p.uri)}{_status(p)}{elected}"


def _decided(view: TopicView, transcript: Transcript | None) -> dict[str, Any]:
    """Return the proved part of a topic and the numbers of its decision, for `--json`."""
    candidates = {candidate.hash: candidate for candidate in transcript.candidates} if transcript else {}
    spoken = transcript.spoken if transcript else {}
    return {
        "protocols": [
            {
                **_value(p),
                "suspect": p.hash in candidates and bool(candidates[p.hash].suspect),
                "speaks": spoken[p.hash].hash if p.hash in spoken else p.hash,
                "strength": numbers(candidates[p.hash], transcript) if transcript and p.hash in candidates else None,
            }
            for p in view.protocols
        ],
        "taken_back": [_value(p) for p in view.taken_back],
        "consensus": view.consensus,
        "decided_epoch": view.epoch,
        "turnout": turnout_numbers(transcript) if transcript else None,
    }


def _value(protocol: TopicProtocol) -> dict[str, Any]:
    status = protocol.status
    return {
        "uri": protocol.uri,
        "hash": protocol.hash,
        "publisher": protocol.publisher,
        "state": protocol.state,
        "status": status.state if status else "active",
        "successor": status.successor if status else None,
    }


def _status(protocol: TopicProtocol) -> str:
    """Return the status that the publisher gave a protocol, for the end of a line."""
    status = protocol.status
    if status is None or status.state == "active":
        return ""
    successor = f", successor {escape(status.successor)}" if status.successor else ""
    return f"  [yellow]{status.state}{successor}[/]"


def _marks(document: str, transcript: Transcript | None, names: Names) -> str:
    """Return the marks of a protocol: a warning of it, or the version that its line speaks instead of it."""
    spoken = transcript.spoken.get(document) if transcript else None
    if spoken is None:
        return ""
    if spoken.hash != document:
        return f"  [dim]its line speaks {escape(choice_name(spoken.hash, names))}[/]"
    return "  [red]suspect[/]" if spoken.suspect else ""


def _reasons(view: TopicView, transcript: Transcript | None) -> Iterable[RenderableType]:
    if view.epoch is None:
        return (
            "Nothing is decided here yet. A topic is decided when a published document was reported by enough pairs of agents "
            "(3, unless the parameters differ) and the epoch closes. Only agents with weight count, and a did:key has none.",
        )
    if transcript is None:
        return ("The registry no longer has the transcript of the decision. Recompute it with: treaty audit",)
    offered = {protocol.hash for protocol in view.protocols}  # another publisher may have the same document
    return explain_transcript(transcript, _names(view), {p.hash: p.withdrawal for p in view.taken_back if p.hash not in offered})


def _names(view: TopicView) -> dict[str, str]:
    """Return document hash → name for people."""
    names: dict[str, str] = {}
    for protocol in (*view.protocols, *view.taken_back):
        name = parse_protocol_uri(protocol.uri).label
        names[protocol.hash] = f"{names[protocol.hash]}, {name}" if protocol.hash in names else name
    return names


def _reported(view: TopicView, pairs: ReportedPairs | None) -> Iterable[RenderableType]:
    """Explain the reports so far of the documents that are no candidates."""
    waiting = {p.hash: name for p in view.protocols if p.state == "published" and (name := _names(view)[p.hash])}
    if pairs is None or not waiting:
        return
    for document, name in waiting.items():
        yield f"[yellow]•[/] {escape(reported(document, name, pairs))}"
    yield (
        "A pair counts once an epoch. Both agents need `report = true` in policy.toml, and a report is sent up to "
        "`report_delay` seconds after it was signed."
    )


# Of the newest reports. They show that a topic starves, and each bundle costs a request and 256 parsed leaves.
_MAX_BUNDLES = 8


async def read_pairs(client: RegistryClient, topic: str) -> ReportedPairs | None:
    """Return the pairs of a topic, or None if the registry does not tell them. Never raises `TreatyError`."""
    try:
        log = await client.log()
        if log.parameters is None:
            return None
        parameters = statement.understand(await client.statement(log.parameters)).body
        assert isinstance(parameters, Parameters)
        newest = [speaker.index for speaker in (await client.speakers(topic=topic)).speakers]
        bundles = sorted({index // TILE_WIDTH for index in newest if index < log.size}, reverse=True)[:_MAX_BUNDLES]
        leaves: list[bytes] = []
        for number in bundles:
            width = min(TILE_WIDTH, log.size - number * TILE_WIDTH)
            leaves += decode_bundle(await client.tile(Bundle(number, width)), width)
        reports = list(_agreed(leaves, topic, since=log.epoch - parameters.horizon_epochs))
    except (TreatyError, AssertionError):
        return None  # advice only
    pairs, idle = defaultdict[str, set[tuple[str, ...]]](set), defaultdict[str, set[tuple[str, ...]]](set)
    for report, body in reports:
        pair = tuple(sorted(did.text for did in report.authors))
        (idle if any(did.method == "key" for did in report.authors) else pairs)[body.document].add(pair)
    return ReportedPairs(
        {document: frozenset(agents) for document, agents in pairs.items()},
        {document: len(agents) for document, agents in idle.items()},
        parameters.candidate_pairs,
        # A pair may have reported in an older bundle that holds no agent's newest report.
        not newest or log.size <= TILE_WIDTH * len(bundles),
    )


def _agreed(leaves: list[bytes], topic: str, *, since: int) -> Iterator[tuple[Statement, Report]]:
    for leaf in leaves:
        try:
            report = statement.understand(leaf)
        except TreatyError:
            continue  # a leaf of Sigstore
        body = report.body
        if isinstance(body, Report) and (body.topic, body.outcome) == (topic, "agreed") and body.epoch > since:
            yield report, body


_MAX_SHOWN = 160
_MAX_SUM = 2**128 - 1


def topics(*, after: str = "", options: Options = Options()) -> None:
    """List the topics of a registry by name, each with its consensus, by its registry's account.

    The last line says how well the network understands itself: the share of the pairs that report that could speak at once.

    Parameters
    ----------
    after
        The `next` of the page before.
    """

    async def work() -> tuple[TopicPage, tuple[Reach, ...]]:
        async with RegistryClient(options.sources(), options.network) as client:
            return await client.topics(after), await _reach(client)

    page, reach = run(work())
    table = Table(
        Column("topic", overflow="fold"), "protocols", Column("consensus", overflow="fold"), "decided in epoch", box=None
    )
    for topic in page.topics:
        consensus = _consensus(topic)
        decided = "–" if topic.epoch is None else str(topic.epoch)
        table.add_row(escape(printable(topic.topic, _MAX_SHOWN)), str(topic.protocols), consensus, decided)
    more = [f"More: treaty topics --after {escape(printable(page.next, _MAX_SHOWN))}"] if page.next else []
    value = msgspec.to_builtins(page) | {"reach": [{"epoch": at.epoch, "able": _able(at)} for at in reach]}
    notes = [f"{_able(at)} of the pairs that report could speak at once at the end of epoch {at.epoch}." for at in reach[:1]]
    options.output.result(value, *([table] if page.topics else ["No topic has a protocol."]), *more, *notes)


def _consensus(topic: TopicSummary) -> str:
    """Return the elected protocol by its name, with its status, for people. An older registry tells its hash alone."""
    if topic.consensus is None:
        return "–"
    if topic.uri is None:
        return escape(short(printable(topic.consensus, _MAX_SHOWN)))
    label = escape(printable(_label(topic.uri), MAX_URI))
    if topic.status in (None, "active"):
        return label
    successor = f", successor {escape(printable(_label(topic.successor), MAX_URI))}" if topic.successor else ""
    return f"{label} [yellow]{escape(printable(topic.status, _MAX_SHOWN))}{successor}[/]"


def _label(uri: str) -> str:
    try:
        return parse_protocol_uri(uri).label
    except TreatyError:  # by its registry's account
        return uri


async def _reach(client: RegistryClient) -> tuple[Reach, ...]:
    """Return the reach of the newest epochs; none where the registry does not tell it."""
    try:
        return (await client.log()).reach
    except TreatyError:
        return ()  # the topics are the answer; this is one more line


def _able(reach: Reach) -> str:
    able, pairs = (parse_decimal(part, limit=_MAX_SUM) for part in (reach.able, reach.pairs))
    return share(able, pairs)
