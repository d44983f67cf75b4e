"""The tables of limits, waits, quotas and constants: each value is read from the code that enforces it."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from treaty_agent.negotiators import language_model, spending
from treaty_agent.sessions import calls, invocations, room_file, shared_handler, wire
from treaty_agent.sessions.interfaces import CANCELLING_TIME, PATIENT, Capacity, SessionTimeouts
from treaty_agent.transport import application, http, http_server, listener, websocket
from treaty_anp import frame
from treaty_anp.hello_profile.core import Limits
from treaty_anp.hello_profile.states import Timeouts
from treaty_consensus.amendment import ANCHOR_SHARE, BOUNDS
from treaty_consensus.election import defaults
from treaty_consensus.handler import wasm
from treaty_consensus.kinds import MAX_ANCHORS, MIN_ANCHORS, Blob
from treaty_io.admission import rounds
from treaty_io.admission.connections import UNSENT, ConnectionLimits
from treaty_io.network import egress, turns
from treaty_registry.routes.requests import BODY_SECONDS
from treaty_registry.settings import Quotas, Rate, Share
from treaty_sandbox import validation
from treaty_sandbox.passivation import Passivation
from treaty_sandbox.worker import wasm as runtime

from . import GENERATORS

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(number: float) -> str:
    """A number of bytes in the largest unit that divides it."""
    exact = int(number)
    unit, name = next(((unit, name) for unit, name in _UNITS if exact % unit == 0), (1, "bytes"))
    return f"{exact // unit:,} {name}"


def seconds(number: float) -> str:
    """A time."""
    return "1 second" if number == 1 else f"{number:,g} seconds"


def table(heads: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """A Markdown table. Integers are written with commas."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        lines.append(f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in row)} |")
    return "\n".join(lines)


def hello_limits() -> str:
    """The waits and bounds of a session of the Hello profile."""
    timeouts, limits = Timeouts(), Limits()

    def patient(usual: float, negotiating: float) -> str:
        return f"{seconds(usual)}; with negotiators {negotiating:g}"

    rows: list[tuple[object, ...]] = [
        ("`Timeouts.hello`", "the other Hello", seconds(timeouts.hello)),
        ("`Timeouts.code`", "both codes after an agreement", patient(timeouts.code, PATIENT.code)),
        (
            "`Timeouts.reply`",
            "an answer, or this side's own decision",
            patient(timeouts.reply, PATIENT.reply),
        ),
        ("`Timeouts.idle`", "any frame in a running session", seconds(timeouts.idle)),
        ("`Limits.rounds`", "protocolNegotiation messages of both sides together [16, 17]", limits.rounds),
        ("`Limits.test_rounds`", "testCasesNegotiation messages of both sides together", limits.test_rounds),
        ("`Limits.fix_rounds`", "errors that each side may report", limits.fix_rounds),
        ("`Limits.questions`", "questions that each side may ask", limits.questions),
        ("`Limits.early_frames`", "frames of early data", limits.early_frames),
        ("`Limits.waiting_frames`", "frames kept in each direction until the session runs", limits.waiting_frames),
        ("`Limits.waiting_bytes`", "their bytes", size(limits.waiting_bytes)),
    ]
    return table(("setting", "bounds", "default"), rows)


def transport_limits() -> str:
    """The bounds of a listener and a connection."""
    both = f"{size(frame.MAX_PAYLOAD)} + 1 byte"
    return table(
        ("limit", "value"),
        [
            ("one message", both),
            ("messages read ahead of the agent", f"{http.MAX_INBOX} over HTTP; over a WebSocket the content of one read"),
            ("connections", "`max_connections`; a further one gets 503"),
            (
                "connections of one network",
                f"as many as are left, and {application.ANY_NETWORK} in any case; a further one gets 503",
            ),
            ("sockets", f"twice `max_connections`, and {listener.SPARE_SOCKETS}, or fewer where the process may open few files"),
            ("sockets of one address (IPv6: of one /64)", "half of them; beyond it those at rest for longest are closed"),
            ("a socket that sends nothing is closed after", seconds(websocket.OPEN_TIMEOUT)),
            (
                "frames of a read that are parsed at once; others in turns of the networks",
                f"{websocket.FRAMES_AT_ONCE}; {websocket.FRAMES} a turn",
            ),
            ("pings of a peer that does not read the answers", f"{websocket.MAX_PINGS}; the next one ends the connection"),
            ("the head of a request", f"{size(listener.MAX_HEAD)}, within {seconds(websocket.OPEN_TIMEOUT)}"),
            (
                "the body of a request",
                f"{size(http.MAX_BODY)} and {http.MAX_MESSAGES} messages, within {seconds(application.BODY_TIMEOUT)}",
            ),
            (
                "all bodies and answers under way in an agent",
                f"{size(application.MAX_READING)}, a quarter of them of one network",
            ),
            (
                "all unread and unacknowledged messages of HTTP sessions",
                f"{size(http_server.MAX_HELD)}; beyond it the largest session is dropped (404)",
            ),
            ("messages waiting to be sent in a session", f"{size(wire.MAX_BACKLOG)} and one message"),
            ("the same, before reading from the peer pauses", size(wire.READ_ROOM)),
            ("the time a peer has to take a message, or to read an answer", seconds(listener.READ_TIMEOUT)),
            ("requests of one HTTP session at the same time", http_server.MAX_AT_ONCE),
            ("an answer held until there is something to send", seconds(http.HOLD)),
            ("an HTTP session without a request", seconds(http_server.EXPIRY)),
            ("the end of an HTTP session can be asked for", seconds(http_server.LINGER)),
            ("a connection without a request", seconds(listener.KEEP_ALIVE)),
            ("closing a connection", seconds(websocket.CLOSE_TIMEOUT)),
        ],
    )


def session_workers() -> str:
    """How many sandboxed workers sessions share."""
    limits, capacity = Passivation(), Capacity()
    return table(
        ("limit", "value"),
        [
            ("workers of sessions, prewarmed ones included", limits.max_workers),
            ("workers that start at the same time", limits.starts),
            ("sessions being opened, with one address and of all peers", capacity.openings),
            ("a sourceHello waiting for its turn", seconds(capacity.wait)),
            ("idle time after which a session gives its worker up", seconds(limits.idle)),
            ("an event waiting for a worker", seconds(limits.wait)),
            ("the snapshot of a session", size(validation.MAX_SNAPSHOT)),
        ],
    )


def stream_limits() -> str:
    """The share of a host that the streams of a session may take."""
    return table(
        ("bound", "value", "beyond it"),
        [
            (
                "items of all streams of a session that wait for the application",
                f"{size(calls.MAX_HELD)}, each value counted with its text and {calls.VALUE_BYTES} bytes",
                "`session.outbox-full`, the call is cancelled",
            ),
            ("streams that a session provides at the same time", Capacity().streams, "the `Invoke` fails with 503"),
            (
                "requests and events whose functions run at the same time, of a session",
                Capacity().functions,
                f"the function waits, at most {seconds(Capacity().wait)}; then 503, not begun",
            ),
            ("items under way from a function to its handler", "one of each stream", "the function waits"),
            ("bytes that wait for the peer", f"{size(wire.CALL_ROOM)} before a function goes on", "the function waits"),
            ("silence of a function that owes an item", "`timeout`", "its generator is closed; 504"),
            (
                "silence of the other side while an item is owed",
                "`timeout`, and `timeouts.answer`",
                "the call is cancelled; `OutcomeUnknown`",
            ),
            ("`finally` blocks of functions at the end of a session", seconds(CANCELLING_TIME), "the session ends without them"),
        ],
    )


def wasm_limits() -> str:
    """The caps of a WebAssembly module, and what an instance may use."""
    at_most = {
        "the module": size(wasm.MAX_MODULE),
        "pages of memory at its start": wasm.MAX_PAGES,
        "functions; types; globals": f"{wasm.MAX_FUNCTIONS:,}; {wasm.MAX_TYPES:,}; {wasm.MAX_GLOBALS:,}",
        "exports; segments of data, of the table": f"{wasm.MAX_EXPORTS}; {wasm.MAX_SEGMENTS:,}",
        "entries of the one table": f"{wasm.MAX_TABLE:,}",
        "a function": size(wasm.MAX_BODY),
        "its variables; parameters; results": f"{wasm.MAX_LOCALS}; {wasm.MAX_PARAMETERS}; {wasm.MAX_PARAMETERS}",
        "its calls; targets of branches; depth": f"{wasm.MAX_BRANCHES:,}; {wasm.MAX_BRANCHES:,}; {wasm.MAX_DEPTH:,}",
        "its weight": f"{wasm.MAX_WEIGHT:,}",
        "the weights, and the calls, of all functions": f"{wasm.MAX_WEIGHTS:,}; {wasm.MAX_CALLS:,}",
    }
    in_use = {
        "instructions of one request, about": f"{runtime.FUEL:,}",
        "memory of an instance; its stack": f"{size(runtime.MAX_MEMORY)}; {size(runtime.MAX_STACK)}",
        "a reply": size(runtime.MAX_REPLY),
    }
    rows = [(name, value, "`handler.package`") for name, value in at_most.items()]
    beyond = ("`sandbox.limit`", "growing fails; `handler.failed`", "`handler.failed`")
    return table(
        ("cap", "at most", "beyond it"), [*rows, *((*row, code) for row, code in zip(in_use.items(), beyond, strict=True))]
    )


def shared_limits() -> str:
    """The share of a shared session that its members may take."""
    return table(
        ("bound", "value", "beyond it"),
        [
            ("members of a session", Capacity().members, "`session.busy` for the one that connects"),
            ("members of one network", "as many as places are free", "`session.busy`"),
            ("functions of requests and events that run for one member", Capacity().functions, "its next message waits"),
            ("such functions of all members", invocations.MAX_SHARED, "the next message of each member waits"),
            ("streams that are provided to one member", Capacity().streams, "the `Invoke` fails with 503"),
            ("streams that are provided to all members", invocations.MAX_SHARED, "the `Invoke` fails with 503"),
            ("bytes that wait for one member", size(wire.MAX_BACKLOG), "the member is dropped: `session.slow-peer`"),
            (
                "bytes that wait for all members",
                size(shared_handler.MAX_WAITING),
                "the slowest one is dropped: `session.slow-peer`",
            ),
            ("the file of a session in the home", size(room_file.MAX_ROOM), "it is refused: `system.state`"),
            (
                "seconds for a member to take one message",
                seconds(SessionTimeouts().send),
                "the member is dropped: `session.slow-peer`",
            ),
            (
                "messages that wait for a member that is not ready",
                Limits().waiting_frames,
                "the member is dropped: `session.outbox-full`",
            ),
        ],
    )


def connection_limits() -> str:
    """The share of the connections of a registry that one client can take."""
    limits = ConnectionLimits()
    return table(
        ("limit", "value"),
        [
            ("connections of one address (IPv6: of one /64)", limits.per_address),
            ("connections of the port", f"{limits.total:,}, or fewer where the process may open few files"),
            ("the head of a request arrives within", seconds(limits.silent)),
            ("the body of a request arrives within", seconds(BODY_SECONDS)),
            ("a connection that sends nothing is closed after", seconds(limits.silent)),
            (f"a client that reads less than {limits.least_rate:,} bytes a second of its answer, after", seconds(limits.stalled)),
            ("a connection without traffic, after", seconds(limits.idle)),
            ("requests of a network that begin before those of others have their turn", rounds.SHARE),
            ("part of an answer that waits in the kernel while its client does not read", size(UNSENT)),
            ("a connection that waits for an answer, after", seconds(limits.unanswered)),
        ],
    )


def quotas() -> str:
    """The token buckets of a registry."""
    limits = Quotas()

    def share(bucket: Share) -> tuple[str, str]:
        part = Fraction(bucket.share)
        return ("the capacity" if part == 1 else f"{part} of the capacity"), f"the refill of {seconds(bucket.seconds)}"

    def rate(bucket: Rate, form: object = None) -> tuple[str, str]:
        return (size(bucket.per_second), size(bucket.burst)) if form else (f"{bucket.per_second:g}", f"{bucket.burst:,g}")

    return table(
        ("whose", "a second", "at once"),
        [
            ("one author's: the DIDs of one host together", *share(limits.principal)),
            ("one network's", *share(limits.prefix)),
            ("everybody's", *share(limits.total)),
            ("did:keys of one network", *rate(limits.strangers_prefix)),
            ("all did:keys together", *rate(limits.strangers)),
            ("one network's requests to the Sigstore services", *rate(limits.services)),
            ("one network's uploaded bytes", *rate(limits.uploads, size)),
        ],
    )


def fetch_limits() -> str:
    """How often a host is asked for DID documents."""
    return table(
        ("asked", "at once", "then"),
        [
            (
                "one host, on any port, by any method, for any document",
                f"{egress.HOST_BURST} requests",
                f"{1 / egress.HOST_INTERVAL:g} a second",
            ),
            (
                "one IPv4 address, or one /64, under any name",
                f"{egress.SITE_BURST} requests",
                f"{1 / egress.SITE_INTERVAL:g} a second",
            ),
            ("waiting for either", f"{turns.MAX_WAITING} requests", f"{seconds(turns.PATIENCE)} at most"),
        ],
    )


def model_budget() -> str:
    """The bounds of the questions to a language model."""
    one, day = language_model.Allowance(), language_model.PER_DAY
    return table(
        ("allowance", "requests", "tokens", "seconds of waiting"),
        [
            ("one session", one.calls, one.tokens, int(one.seconds)),
            ("all sessions of one adapter, a day", day.calls, day.tokens, int(day.seconds)),
        ],
    )


def model_shares() -> str:
    """The shares of a model's budget."""
    share, strangers = f"{spending.SHARE:.0%}", f"{spending.STRANGERS:.0%}"
    return table(
        ("party", "at most"),
        [
            ("the own application", "the whole budget"),
            ("a proved peer with a deposit", share),
            ("a stranger", f"{share} for its network and, if it proved its DID, {share} for that"),
            ("all strangers together", strangers),
            ("all peers together", f"{spending.PEERS:.0%}"),
        ],
    )


_MEANINGS = {
    "electorate": "or `open`: who counts",
    "epoch_seconds": "a week; absent in a development electorate",
    "horizon_epochs": "H: epochs that a report is recent, that an equivocator is barred, and in which a statement's strength "
    "halves",
    "candidate_pairs": "pairs of principals that reported a candidate",
    "candidate_clusters": "clusters among them",
    "candidate_share": "their weight R: `candidate_share` · R ≥ W − w(c)",
    "max_candidates": "the size of the field",
    "quorum_share": "the quorum is the votes that are not for c, divided by this less one",
    "cluster_share": "the support is that of so many equal clusters",
    "provisional_share": "to be kept, a consensus needs the quorum divided by this",
    "over_none": "a consensus, or a repeal, against NONE",
    "over_incumbent": "a successor against the incumbent",
    "memory_horizons": "horizons for which the newest report of a pair speaks for the use of both",
    "sustain_epochs": "epochs that conditions hold before a consensus is made or repealed",
    "dormant_epochs": "failing epochs before a consensus is dormant",
    "suspect_epochs": "epochs that a warning stands",
    "credit": "`report_share`, `epochs`, `pairs`: see [standing](#9-standing)",
    "witnesses": "the witnesses whose cosignatures a decision's input needs, and the quorum ([log.md](log.md))",
    "reputation": "of an open electorate, below",
    "anchors": f"{MIN_ANCHORS} to {MAX_ANCHORS} registrable domains where trust starts",
    "suffix_list": "the Public Suffix List (its ICANN section counts), a blob",
    "rounds": "rounds of trust",
    "max_vouches": "the newest vouches of a principal that are kept",
    "least_vouches": "a principal that vouches for fewer leaves the rest of its trust unspent",
    "cap_share": "the cap leaves the held trust divided by this",
    "loan_share": "lent trust is lent on up to the cap divided by this",
    "acquainted_epochs": "epochs in which two principals agreed before a vouch between them counts",
    "mature_epochs": "the age from which a principal weighs its whole",
    "counterparties": "counterparties in a topic from which a principal weighs its whole there",
    "counterparty_share": "a counterparty has trust of at least the cap divided by this",
}


def election_constants() -> str:
    """The fields of `parameters`, their defaults and meanings."""
    parameters = defaults.open_parameters([f"a{number}.example" for number in range(MIN_ANCHORS)], Blob("0" * 64, 1))
    assert parameters.reputation is not None
    credit, pair = parameters.credit, " : ".join
    values: dict[str, object] = {name: getattr(parameters, name) for name in parameters.__struct_fields__ if name != "rule"}
    values |= {
        "electorate": "development",
        "credit": f"{credit.report_share}, {credit.epochs}, {credit.pairs}",
        "over_none": pair(map(str, parameters.over_none)),
        "over_incumbent": pair(map(str, parameters.over_incumbent)),
        "witnesses": "none",
        "reputation": "none",
    }
    nested = {name: getattr(parameters.reputation, name) for name in parameters.reputation.__struct_fields__}
    nested |= {"anchors": "", "suffix_list": ""}
    rows = [(f"`{name}`", value, _MEANINGS[name]) for name, value in values.items()]
    rows += [(f"&emsp; `{name}`", value, _MEANINGS[name]) for name, value in nested.items()]
    return table(("constant", "default", "meaning"), rows)


def amendment_bounds() -> str:
    """How far an amendment may move each constant."""
    constants = dict[str, list[str]]()
    for bound in BOUNDS:
        constants.setdefault(bound.text, []).append(f"`{bound.constant}`")
    rows = [(", ".join(names), text) for text, names in constants.items()]
    rows += [
        ("`reputation.anchors`", f"at most one of {ANCHOR_SHARE} is added, and one of {ANCHOR_SHARE} removed; of fewer, one"),
        ("`reputation.suffix_list`", "any, as its source changes each week; but not together with the anchors"),
        (
            "`witnesses`",
            "named where none are, and never dropped as a whole. At most one key is removed. The quorum less the number "
            "of new keys is at least the quorum before less 1, and at least 1",
        ),
        ("`electorate`, `rule`", "never from open to development; never to an earlier rule"),
    ]  # fmt: skip
    return table(("constant", "changes"), rows)


GENERATORS.update(
    {
        "hello-limits": hello_limits,
        "transport-limits": transport_limits,
        "session-workers": session_workers,
        "stream-limits": stream_limits,
        "wasm-limits": wasm_limits,
        "shared-limits": shared_limits,
        "connection-limits": connection_limits,
        "quotas": quotas,
        "fetch-limits": fetch_limits,
        "model-budget": model_budget,
        "model-shares": model_shares,
        "election-constants": election_constants,
        "amendment-bounds": amendment_bounds,
    }
)
