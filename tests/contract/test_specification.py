"""The specification is checked against the code: what it names exists, and what exists is named."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import httpx
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from treaty_client import attestation, identity
from treaty_client.authentication import message_signature, nonces
from treaty_client.discovery import client as discovery
from treaty_client.discovery import reading
from treaty_client.flow import history as flow_history
from treaty_client.flow import messages as flow_messages
from treaty_client.flow import processor as flow_processor
from treaty_client.handlers import sandbox, schemas, validation
from treaty_client.handlers.worker import framing
from treaty_client.meta import frame, hello, messages
from treaty_client.meta.limits import Limits, Timeouts
from treaty_client.meta.secure import channel, finished, records
from treaty_client.meta.secure import hello as secure_hello
from treaty_client.model import budget, openai
from treaty_client.negotiation import package, questions, test_cases
from treaty_client.network import egress, resolver
from treaty_client.policy import load_policy
from treaty_client.registries import anchors as anchor_files
from treaty_client.registries import memory
from treaty_client.session import agreements, store
from treaty_client.session.passivation import Passivation
from treaty_client.transport import application, http_server, listener, outbox, websocket
from treaty_client.transport import http as transport_http
from treaty_client.verification import bundle, contradiction, evidence
from treaty_client.verification.steps import Step
from treaty_consensus import canonical, did, errors, kinds, protocol, sigstore_token, statement
from treaty_consensus.did import did_key, did_key_id
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import archive, dist_info, manifest, paths, schema, wheel
from treaty_consensus.log import equivocation, note, proof, witness
from treaty_consensus.log.merkle import leaf_hash
from treaty_handler import values
from treaty_registry.admission import fair_queue, quota, uploads
from treaty_registry.admission.content_process import ContentLimits
from treaty_registry.catalogue import queries, retrieval, search, standing
from treaty_registry.connections import ConnectionLimits
from treaty_registry.problems import problem_of
from treaty_registry.routes import blobs, requests, statements
from treaty_registry.serving import front, topics
from treaty_registry.serving.bundles import MAX_TOPIC_PROTOCOLS
from treaty_registry.settings import Quotas
from treaty_registry.sigstore_authority import ca, rekor, timestamps

CONNECTIONS = ConnectionLimits()
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "specification"
SOURCES = ("consensus", "client", "registry")

CODE = re.compile(r"[a-z][a-z0-9-]*\.[a-z][a-z0-9-]*")
NO_CODE = re.compile(r".*\.(com|db|example|handlers|json|key|lock|md|pem|pid|sha256|start|toml)")  # files, hosts and groups
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
WORD = re.compile(r"[a-z][a-z0-9-]*")

OWNERS = {
    "README.md": ["canonical.py"],
    "statements.md": ["statement.py", "kinds.py", "admit.py", "facts.py"],
    "protocols.md": ["treaty_consensus/protocol.py", "did.py", "egress.py"],
    "log.md": [
        *("treaty_consensus/log/*.py", "sigstore_leaf.py", "treaty_consensus/audit.py", "registries/audit.py", "mirror.py"),
        *("registries/anchors.py", "registries/ahead.py", "registries/scratch.py", "cli/audit.py"),
        *("treaty_registry/witness/*.py", "log/witnesses.py", "cli/equivocation.py"),
    ],
    "handler-packages.md": ["handler/*.py", "attestation.py"],
    "bundles.md": ["verification/*.py", "fetch.py", "treaty_client/answers.py", "treaty_client/resolution.py"],
    "hello-profile.md": [
        *(f"meta/{name}.py" for name in ("frame", "hello", "handshake", "messages", "documents", "machine", "reception", "core")),
        *(f"meta/{name}.py" for name in ("deadlines", "negotiation", "generation", "testing", "repair", "questions")),
    ],
    "discovery.md": ["discovery/*.py"],
    "transports.md": [
        *(f"transport/{name}.py" for name in ("connection", "memory", "outbox", "backoff", "websocket", "http", "http_server")),
        *(f"transport/{name}.py" for name in ("application", "listener", "reconnect")),
        *("session/passivation.py", "session/runtime.py"),
    ],
    "e2ee-profile.md": ["meta/secure/*.py", "transport/secure.py"],
    "identity-on-the-wire.md": ["authentication/*.py", "key_binding.py", "network/resolver.py", "rotation.py"],
    "language-model.md": ["treaty_client/model/*.py", "treaty_client/negotiation/*.py"],
    "flow-profile.md": ["flow/*.py"],
    "http.md": [
        *("routes/*.py", "problems.py", "admission/*.py", "gossip.py", "sequencer.py", "views.py", "sigstore_token.py"),
        *(
            "catalogue/queries.py",
            "catalogue/standing.py",
            "catalogue/retrieval.py",
            "serving/topics.py",
            "serving/views.py",
            "search.py",
        ),
        *("sigstore_authority/ca.py", "sigstore_authority/certificates.py", "sigstore_authority/rekor.py"),
    ],
    "home.md": [
        *("treaty_client/identity.py", "registries/trust.py", "policy.py", "store.py", "reports/ledger.py", "export.py"),
        *("registries/memory.py", "cli/memory.py"),
        *("settings.py", "fence.py", "treaty_registry/keys.py", "leader.py", "log/tables.py", "sigstore_authority/keys.py"),
        *("storage/postgres.py", "storage/embedded.py"),
    ],
}
"""The modules whose every code a file of the specification lists."""

LISTED_ELSEWHERE = {
    "identity-on-the-wire.md": {"registry.answer"},  # what a client says of any registry
    "handler-packages.md": {"protocol.uri"},  # a field of the manifest
    "bundles.md": {"decision.epoch", "note.size", "registry.none"},  # rules of the formats; there is no registry to ask
    "http.md": {"statement.other-log", "statement.unknown-key", "protocol.name"},  # rules of the formats
    "home.md": {"log.not-leading", "log.superseded", "registry.database"},  # what a writer is told, in http.md
    "transports.md": {
        "frame.too-large",
        "http.request",
        "websocket.accept",
        "websocket.close",
        "websocket.receive",
        "websocket.send",
    },  # events of ASGI
}

CAPS = {
    "flow-profile.md": [
        *(flow_messages.MAX_MESSAGE, flow_messages.MAX_APPLICATION, flow_messages.MAX_DATA),
        *(flow_processor.MAX_REMEMBERED, flow_processor.MAX_SIMULTANEOUS, flow_history.MAX_ENTRIES),
    ],
    "hello-profile.md": [
        *(frame.MAX_PAYLOAD, hello.MAX_HELLO, hello.MAX_CANDIDATES, protocol.MAX_DOCUMENT),
        *(messages.MAX_MESSAGE, messages.MAX_SUMMARY, messages.MAX_QUESTION, messages.MAX_SEQUENCE),
        *(int(Timeouts().hello), int(Timeouts().code), int(Timeouts().reply), int(Timeouts().idle)),
        *(Limits().rounds, Limits().test_rounds, Limits().fix_rounds, Limits().questions, Limits().early_frames),
        *(Limits().waiting_frames, Limits().waiting_bytes),
    ],
    "statements.md": [statement.MAX_LEAF, statement.MAX_PAYLOAD, kinds.MAX_WHEEL, kinds.MAX_BUNDLE, archive.MAX_ARCHIVE],
    "protocols.md": [protocol.MAX_DOCUMENT, protocol.MAX_CARD, protocol.MAX_URI, did.MAX_DID, egress.MAX_BODY],
    "log.md": [
        *(note.MAX_NOTE_BYTES, note.MAX_SIGNATURES, proof.MAX_RECEIPT_BYTES, proof.MAX_EXTRA_BYTES, proof.MAX_PROOF_HASHES),
        *(witness.MAX_REQUEST, witness.MAX_PROOF_LINES, witness.MAX_COSIGNERS, witness.MAX_COSIGNER_NAME),
        *(equivocation.MAX_EQUIVOCATION, anchor_files.MAX_FILE, kinds.MAX_ANCHORS),
    ],
    "handler-packages.md": [
        *(archive.MAX_ARCHIVE, archive.MAX_CONTENT, archive.MAX_FILES, paths.MAX_NAME, wheel.MAX_FILENAME),
        *(dist_info.MAX_METADATA, dist_info.MAX_WHEEL_FILE, dist_info.MAX_ENTRY_POINTS, dist_info.MAX_RECORD),
        *(manifest.MAX_MANIFEST, manifest.MAX_OPERATIONS, manifest.MAX_ROLES, manifest.MAX_TEXT),
        *(schema.MAX_NODES, schema.MAX_ALL_NODES, schema.MAX_DEPTH, schema.MAX_NESTING, schema.MAX_WORK),
        *(schema.MAX_PATTERN, schema.MAX_PATTERN_WEIGHT, schema.MAX_NAME_PATTERN_WEIGHT, schema.MAX_ALL_PATTERNS),
        *(values.MAX_VALUES, values.MAX_DEPTH, schemas.MAX_CHECKS, schemas.MAX_MATCH, framing.MAX_REPLY_VALUES),
        *(kinds.MAX_BUNDLE, attestation.MAX_STATEMENT, framing.MAX_FRAME, sandbox.Limits().reply),
    ],
    "identity-on-the-wire.md": [
        *(message_signature.MAX_HEADER, message_signature.MAX_NONCE, nonces.LIFETIME, nonces.FUTURE, nonces.CAPACITY),
        *(int(resolver.MAX_AGE), int(resolver.REFETCH_AGE)),
    ],
    "discovery.md": [
        *(egress.MAX_BODY, hello.MAX_CANDIDATES, discovery.MAX_PAGES, discovery.MAX_AGENTS),
        *(reading.MAX_PROTOCOLS, reading.MAX_ADDRESSES, reading.MAX_ENTRIES, reading.MAX_TEXT),
    ],
    "e2ee-profile.md": [
        *(hello.MAX_HELLO, secure_hello.FRESHNESS, channel.LIFETIME, finished.MAX_FINISHED),
        *(records.MAX_PART, records.MAX_RECORDS, records.MAX_REASON),
    ],
    "language-model.md": [
        *(openai.MAX_REQUEST, openai.MAX_RESPONSE, int(openai.MAX_WAIT)),
        *(budget.Allowance().calls, budget.Allowance().tokens, int(budget.Allowance().seconds)),
        *(budget.PER_DAY.calls, budget.PER_DAY.tokens, int(budget.PER_DAY.seconds)),
        *(package.MAX_FILES, package.MAX_SOURCE, questions.MAX_PROPOSAL, questions.MAX_ANSWER),
        *(test_cases.MAX_TEXT, test_cases.MAX_CASES, test_cases.MAX_TITLE, test_cases.MAX_EXPECTED),
    ],
    "transports.md": [
        *(transport_http.MAX_BODY, transport_http.MAX_MESSAGES, transport_http.HOLD, transport_http.CAPACITY),
        *(http_server.EXPIRY, http_server.LINGER, http_server.MAX_AT_ONCE, application.BODY_TIMEOUT, application.MAX_READING),
        *(http_server.MAX_HELD, outbox.MAX_BACKLOG),
        *(listener.MAX_HEAD, listener.KEEP_ALIVE, listener.SPARE_SOCKETS, websocket.OPEN_TIMEOUT, websocket.CLOSE_TIMEOUT),
        *(Passivation().max_workers, int(Passivation().idle), int(Passivation().wait)),
        validation.MAX_SNAPSHOT,
    ],
    "bundles.md": [
        *(bundle.MAX_BUNDLE, bundle.MAX_LEAVES, bundle.MAX_BLOBS, bundle.MAX_CONSISTENCY, evidence.CLOCK_SKEW),
        *(queries.MAX_HANDLERS, MAX_TOPIC_PROTOCOLS, contradiction.MAX_CONTRADICTION),
    ],
    "http.md": [
        *(front.MAX_PATH, front.MAX_QUERY, front.MAX_HEADER_BYTES, requests.BODY_SECONDS, uploads.MAX_WAITING),
        *(statements.MAX_BATCH, statements.MAX_BATCH_BYTES, blobs.MAX_STATEMENT_HEADER, statement.MAX_LEAF),
        ContentLimits().memory,
        *(
            search.MAX_QUERY,
            search.MAX_QUERY_TERMS,
            retrieval.MAX_PAGE,
            retrieval.MAX_WALK,
            queries.MAX_VERSIONS,
            topics.MAX_TOPICS,
        ),
        *(standing.MAX_SPEAKERS, standing.MAX_RANKED, standing.MAX_CREDITS, quota.MAX_FACTOR),
        *(ca.MAX_REQUEST, timestamps.MAX_QUERY, rekor.MAX_REQUEST, sigstore_token.MAX_TOKEN, sigstore_token.MAX_LIFETIME),
        *(int(CONNECTIONS.silent), int(CONNECTIONS.unanswered), int(CONNECTIONS.stalled), int(CONNECTIONS.idle)),
        *(CONNECTIONS.least_rate, CONNECTIONS.per_address, CONNECTIONS.total, fair_queue.QUANTUM, int(fair_queue.PATIENCE)),
        *(int(Quotas().strangers_prefix.burst), int(Quotas().strangers.burst), int(Quotas().uploads.burst)),
    ],
    "home.md": [
        identity.MAX_FILE,
        *(memory.MAX_LEAVES, memory.MAX_BYTES, memory.MAX_KEPT - 1),
        agreements.MAX_AGREEMENTS,
        store.MAX_FOLDERS,
        validation.MAX_STORED,
        validation.MAX_STORED_KEYS,
    ],
}
"""The numbers that a file says."""


@cache
def text(name: str) -> str:
    return (DOCS / name).read_text()


def examples(name: str) -> dict[str, str]:
    """The fenced blocks that a paragraph beginning with a bold word introduces, by that word."""
    found = re.findall(r"^\*\*(\w+)\*\*(?:[^\n]+\n)+\n```\n(.*?)^```$", text(name), re.MULTILINE | re.DOTALL)
    return dict(found)


def named_codes(name: str) -> set[str]:
    """What a file names in code spans that looks like an error code."""
    return {span for span in SPAN.findall(text(name)) if CODE.fullmatch(span) and not NO_CODE.fullmatch(span)}


@cache
def codes_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The codes that a module spells, and those that an f-string of it may compose from its own words."""
    strings, composed = set(), set[tuple[str, str]]()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Constant(value=str(value)):
                strings.add(value)
            case ast.JoinedStr(values=[ast.Constant(value=str(prefix)), ast.FormattedValue()]):
                composed.add((prefix, ""))
            case ast.JoinedStr(values=[ast.FormattedValue(), ast.Constant(value=str(suffix))]):
                composed.add(("", suffix))
    words = {word for value in strings if WORD.fullmatch(word := value.replace(" ", "-").lower())}
    candidates = {prefix + word + suffix for prefix, suffix in composed for word in words}
    spelt = {code for code in strings if CODE.fullmatch(code) and not NO_CODE.fullmatch(code)}
    return frozenset(spelt), frozenset(code for code in candidates if CODE.fullmatch(code))


@cache
def modules() -> tuple[Path, ...]:
    return tuple(path for source in SOURCES for path in sorted((ROOT / source).rglob("*.py")))


def owned(patterns: list[str]) -> list[Path]:
    """The modules that patterns name, each of which must find one."""
    found = []
    for pattern in patterns:
        matches = [path for path in modules() if path.match(pattern)]
        assert matches, f"there is no {pattern}"
        found += matches
    return found


def spellings(number: int) -> list[str]:
    """How the specification may write a number."""
    units = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
    return [f"{number:,}", *(f"{number >> bits} {unit}" for bits, unit in units if number % (1 << bits) == 0)]


def test_the_worked_example_is_what_the_code_makes() -> None:
    given = examples("statements.md")
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(given["Seed"].strip()))
    public = key.public_key().public_bytes_raw()
    document, card = given["Document"].encode(), given["Card"].strip().encode()
    assert protocol.parse_card(card).title == "Greeting"
    body = kinds.Publish(
        f"https://registry.example/protocols/{did_key(public)}/greeting/1.0",
        "social/greeting",
        kinds.Blob(protocol.check_document(document), len(document)),
        kinds.Blob(canonical.hex_digest(card), len(card)),
        "negotiated",
    )
    draft = statement.draft(body, log="registry.example", by=(did_key_id(public),), issued=1_790_000_000)
    made = draft.seal({did_key_id(public): key.sign(draft.signing_input)})
    assert made.payload.decode() == given["Payload"].replace("\n", "")
    assert made.signatures[0].hex() == given["Signature"].replace("\n", "")
    assert made.id == given["Id"].strip()
    assert leaf_hash(made.leaf).hex() == given["Leaf"].strip()
    assert statement.verify(statement.parse(made.leaf), {did_key_id(public): public}).statement.id == made.id
    for size in (f"{len(document)} bytes", f"{len(card)} bytes", f"{len(made.payload)} bytes", f"{len(made.leaf):,}-byte"):
        assert size in text("statements.md")


def test_every_kind_is_specified_with_its_fields() -> None:
    fences = re.findall(r"^```\n(.*?)^```$", text("statements.md"), re.MULTILINE | re.DOTALL)
    listing = next(fence for fence in fences if fence.startswith("genesis"))
    found = {}
    for part in listing.strip().split("\n\n"):
        heading, *lines = part.splitlines()
        found[heading.split()[0]] = {name for line in lines for name in field_names(line)}
    assert list(found) == list(kinds.KINDS)
    for name, kind in kinds.KINDS.items():
        assert {field.encode_name for field in msgspec.structs.fields(kind)} == found[name], name


def field_names(line: str) -> list[str]:
    """The names before the gap in a line of the listing: one, or several with commas."""
    return [name.rstrip("?,") for name in re.split(r" {2,}", line.strip())[0].split()]


def test_every_file_is_in_the_index() -> None:
    index = re.findall(r"^\d+\. \[.+\]\((.+)\):", text("README.md"), re.MULTILINE)
    assert sorted([*index, "README.md"]) == sorted(path.name for path in DOCS.glob("*.md"))


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_code_that_is_named_exists(name: str) -> None:
    known = set().union(*(spelt | composed for spelt, composed in map(codes_of, modules())))
    named_modules = {f"{path.parent.name}.{path.stem}" for path in modules()}
    assert named_codes(name) <= known | named_modules


@pytest.mark.parametrize("name", OWNERS)
def test_every_code_of_a_format_is_named(name: str) -> None:
    existing = set().union(*(codes_of(path)[0] for path in owned(OWNERS[name])))
    elsewhere = LISTED_ELSEWHERE.get(name, set())
    assert existing - named_codes(name) == elsewhere


def test_every_step_is_specified_under_its_number() -> None:
    headings = re.findall(r"^### (\d+) (\w+)$", text("bundles.md"), re.MULTILINE)
    assert headings == [(str(step.value), step.title) for step in Step]


async def test_every_route_is_specified(api: httpx.AsyncClient) -> None:
    described = (await api.get("/schema/openapi.json")).json()
    routes = {f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods}
    named = {span for span in SPAN.findall(text("http.md")) if re.fullmatch(r"(GET|POST|PUT) /\S+", span)}
    assert named == routes | {"GET /schema/openapi.json"}


def test_every_family_has_its_status() -> None:
    families = [family for family in vars(errors).values() if isinstance(family, type) and TreatyError in family.__mro__[1:]]
    assert len(families) == 9
    for family in families:
        status = problem_of(family("some.code", "A sentence.")).status
        assert re.search(rf"^\| {status} \| {family.__name__}\b", text("http.md"), re.MULTILINE), family
        assert re.search(rf"^\| {family.__name__} \|", text("README.md"), re.MULTILINE), family
    assert "429 when a quota is used up" in text("http.md")
    assert problem_of(errors.Unavailable("quota.total", "A sentence.")).status == 429


@pytest.mark.parametrize("name", CAPS)
def test_caps_are_those_of_the_code(name: str) -> None:
    for cap in CAPS[name]:
        forms = "|".join(map(re.escape, spellings(cap)))
        assert re.search(rf"(?<![\d,.])(?:{forms})(?![\d,.]\d)", text(name)), cap


def test_the_policy_in_the_specification_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", text("home.md"), re.MULTILINE | re.DOTALL)
    (tmp_path / "policy.toml").write_text(example)
    policy = load_policy(tmp_path / "policy.toml")
    assert policy.publishers == ("did:wba:example.com",)
    defaults = load_policy(tmp_path / "absent.toml")
    assert tomllib.loads(example).keys() == set(vars(policy))
    for name in ("max_age", "report", "report_delay", "isolation"):
        assert getattr(policy, name) == getattr(defaults, name), name


def test_links_between_files_lead_somewhere() -> None:
    for path in [*DOCS.glob("*.md"), *(ROOT / "docs" / "decisions").glob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", path.read_text()):
            linked = (path.parent / target).resolve() if target else path
            assert linked.exists(), f"{path.name}: {target}"
            if anchor:
                assert anchor in anchors(linked), f"{path.name}: {target}#{anchor}"


def anchors(path: Path) -> set[str]:
    """The anchors that headings have: lower case, spaces as dashes, other signs left out."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
