"""The specification is checked against the code: what it names exists, and what exists is named."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import httpx
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from docs.generate.parts import completed

from treaty_agent.authentication import message_signature, nonces
from treaty_agent.discovery import client as discovery
from treaty_agent.negotiators import openai, package, questions, test_cases
from treaty_agent.sessions import agreements, handler_state
from treaty_agent.transport import http as transport_http
from treaty_agent.transport import http_server
from treaty_anp import frame
from treaty_anp.discovery import parsing
from treaty_anp.e2ee import channel, handshake, records
from treaty_anp.e2ee import hello as secure_hello
from treaty_anp.flow_profile import messages as flow_messages
from treaty_anp.flow_profile import parameters
from treaty_anp.flow_profile import processor as flow_processor
from treaty_anp.flow_profile import transfer as flow_transfer
from treaty_anp.hello_profile import hello, messages
from treaty_client.audit import auditor as anchor_files
from treaty_client.policy import load_policy
from treaty_client.protocols import attestation, project, project_file
from treaty_client.protocols.verification import checkpoint, contradiction
from treaty_client.protocols.verification.steps import Step
from treaty_client.registries import bundle, memory
from treaty_consensus import canonical, did, errors, kinds, protocol, sigstore_token, stamped, statement
from treaty_consensus.did import did_key, did_key_id
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import archive, dist_info, manifest, paths, schema, wheel
from treaty_consensus.log import equivocation, note, proof, witness
from treaty_consensus.log.merkle import leaf_hash
from treaty_handler import values
from treaty_io.identity import identity
from treaty_io.network import did_documents, egress
from treaty_registry.admission import fair_queue, quota, upload_room
from treaty_registry.admission.content_process import ContentLimits
from treaty_registry.catalogue import queries, ranking, retrieval, search, standing, statuses
from treaty_registry.problems import problem_of
from treaty_registry.routes import blobs, statements
from treaty_registry.serving import request_filter, request_head, topics
from treaty_registry.serving.bundles import MAX_TOPIC_PROTOCOLS
from treaty_registry.sigstore_authority import ca, rekor, timestamps
from treaty_registry.witness import box
from treaty_sandbox import limits, schemas, validation, vectors
from treaty_sandbox.worker import framing

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "specification"

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


CAPS = {
    "flow-profile.md": [
        ("A message of a negotiation has at most {}, one of a protocol", flow_messages.MAX_MESSAGE),
        ("one of a protocol {}.", flow_messages.MAX_APPLICATION),
        ("A handler's message has at most {}, or", flow_transfer.MAX_DATA),
        ("| `chunkSize` | a whole number, at least `{}` |", parameters.MIN_CHUNK),
        ("up to {} of one sender", flow_processor.MAX_OF_SENDER),
        ("The ids of these 2 seconds are remembered, up to {} of them", flow_processor.MAX_RECENT),
        ("`HOME/flow-history.json` ({} at most", agreements.MAX_AGREEMENTS),
    ],
    "hello-profile.md": [
        ("binary, at most {} + 1 byte", frame.MAX_PAYLOAD),
        ("ignored on receipt. Then at most {}.", frame.MAX_PAYLOAD),
        ("JSON of at most {}, by the rules", hello.MAX_HELLO),
        ("the first {} are looked at", hello.MAX_CANDIDATES),
        ("Markdown, at most {}, clear and concise", protocol.MAX_DOCUMENT),
        ("`candidateProtocols`, `testCases` | at most {} of UTF-8", protocol.MAX_DOCUMENT),
        ("JSON (RFC 8259), UTF-8, of at most {}, 1,024 values", messages.MAX_MESSAGE),
        ("of at most 1 MiB, {} values and", messages.MAX_VALUES),
        ("`modificationSummary` | at most {},", messages.MAX_SUMMARY),
        ("`errorDescription` | at most {};", messages.MAX_SUMMARY),
        ("`message` | 1 byte to {} |", messages.MAX_QUESTION),
        ("of a peer 1 to {} of any kind", messages.MAX_ID),
        ("`sequenceId` | 0 to {} |", messages.MAX_SEQUENCE),
        ("The cap is that of the field, {}.", test_cases.MAX_TEXT),
        ("form, at most {} of them, and passes over", test_cases.MAX_CASES),
        ("A title has at most {} characters", test_cases.MAX_TITLE),
        ("result is one line of at most {}.", test_cases.MAX_EXPECTED),
    ],
    "statements.md": [
        ("envelope with exactly these members, at most {} bytes", statement.MAX_LEAF),
        ("The payload is JCS, at most {} bytes", statement.MAX_PAYLOAD),
        ("the wheel's file name wheel blob, at most {} ", kinds.MAX_WHEEL),
        ("the wheel's file name wheel blob, at most {} ", archive.MAX_ARCHIVE),
        ("bundle that attests the wheel, at most {} ", kinds.MAX_BUNDLE),
    ],
    "protocols.md": [
        ("**document** is Markdown, at most {},", protocol.MAX_DOCUMENT),
        ("entry in catalogues: JCS, at most {},", protocol.MAX_CARD),
        ("NAMESPACE/NAME/VERSION at most {} characters", protocol.MAX_URI),
        ("``` At most {} characters. Hosts are", did.MAX_DID),
        ("It follows no redirect, reads at most {},", egress.MAX_BODY),
    ],
    "log.md": [
        ("at least 16 are accepted | 100, and {} |", note.MAX_NOTE_BYTES),
        ("at least 16 are accepted | {}, and", note.MAX_SIGNATURES),
        ("`log.form` Malformed; TooLarge: over {}.", proof.MAX_RECEIPT_BYTES),
        ('["extra " B64(1 to {} bytes)', proof.MAX_EXTRA_BYTES),
        ("LF (B64(hash) LF)* at most {}, the leaf's sibling first", proof.MAX_PROOF_HASHES),
        ("`POST PREFIX/add-checkpoint`, at most {} bytes", witness.MAX_REQUEST),
        ("(B64(hash) LF)* at most {}: the consistency proof", witness.MAX_PROOF_LINES),
        ("`POST PREFIX/add-statement`, the envelope of a [statement](statements.md), at most {} bytes", stamped.MAX_ENVELOPE),
        ("is for the log and for everyone: at most {} statements", box.PAGE),
        ("the statements for a log have at most {} together", box.ROOM),
        ("(`witnessed`), each {} seconds to 13 days later", stamped.MARGIN),
        ("A **quorum** is 1 to {} keys", witness.MAX_COSIGNERS),
        ("with names of at most {} characters", witness.MAX_COSIGNER_NAME),
        ("`treaty equivocation FILE`. JCS, at most {},", equivocation.MAX_EQUIVOCATION),
        ("begins a comment; at most {} and", anchor_files.MAX_FILE),
        ("and {} domains, each once", kinds.MAX_ANCHORS),
    ],
    "handler-packages.md": [
        ("plain (below): at most {}, 256 files", archive.MAX_ARCHIVE),
        ("files, {} of content.", archive.MAX_CONTENT),
        ("at most 2 MiB, {} files,", archive.MAX_FILES),
        ("**Paths** are ASCII, at most {} characters", paths.MAX_NAME),
        ("-py3-none-any.whl`, at most {} characters", wheel.MAX_FILENAME),
        ("| `METADATA` | {} |", dist_info.MAX_METADATA),
        ("| `WHEEL` | {} |", dist_info.MAX_WHEEL_FILE),
        ("| `entry_points.txt` | {} |", dist_info.MAX_ENTRY_POINTS),
        ("| `RECORD` | {} bytes |", dist_info.MAX_RECORD),
        ("UTF-8 JSON, at most {}, no name twice", manifest.MAX_MANIFEST),
        ('"operations": { 1 to {}; names', manifest.MAX_OPERATIONS),
        ('"roles": { 1 to {}; names', manifest.MAX_ROLES),
        ("Texts have 1 to {} characters", manifest.MAX_TEXT),
        ("of a stream alone: 1 to {} items", manifest.MAX_WINDOW),
        ("1 to 1,024 items, {} unless given", manifest.DEFAULT_WINDOW),
        ("its function may take {} seconds", manifest.EVENT_TIMEOUT),
        ("begins at 0 and is at most {}.", manifest.MAX_WINDOW),
        ("has more than {} nodes", schema.MAX_NODES),
        ("schemas of a manifest have together at most {} nodes", schema.MAX_ALL_NODES),
        ("part of a chain of more than {};", schema.MAX_DEPTH),
        ("is nested deeper than {} levels", schema.MAX_NESTING),
        ("may judge one value more than {} times", schema.MAX_WORK),
        ("has a pattern of more than {} characters", schema.MAX_PATTERN),
        ("or that weighs more than {} (one of", schema.MAX_PATTERN_WEIGHT),
        ("(one of `patternProperties`: {})", schema.MAX_NAME_PATTERN_WEIGHT),
        ("different patterns that weigh at most {}.", schema.MAX_ALL_PATTERNS),
        ("(arguments, a result or a message) has at most {} values", values.MAX_VALUES),
        ("has at most 20,000 values, {} levels", values.MAX_DEPTH),
        ("/ 64), is at most {}, and matches", schemas.MAX_CHECKS),
        ("together: the same {}, and", schemas.MAX_CHECKS),
        ("only with texts of at most {} bytes / its weight", schemas.MAX_MATCH),
        ("of its worker has at most 4 MiB and {} values", framing.MAX_REPLY_VALUES),
        ("`protocol.toml`, at most {}:", project_file.MAX_TOML),
        ("a project has at most {}:", project.MAX_VECTORS),
        ("strict JSON of at most {} (`treaty_sandbox.vectors`)", vectors.MAX_VECTOR),
        ("A Sigstore bundle v0.3, at most {},", kinds.MAX_BUNDLE),
        ("`application/vnd.in-toto+json` and at most {} bytes", attestation.MAX_STATEMENT),
        ("A reply of its worker has at most {} and", limits.SandboxLimits().reply),
    ],
    "identity-on-the-wire.md": [
        ("Each header has at most {} characters", message_signature.MAX_HEADER),
        ("and `nonce` (1 to {} characters)", message_signature.MAX_NONCE),
        ("`expires` {} seconds after", nonces.LIFETIME),
        ("It was created at most {} seconds ago", nonces.LIFETIME),
        ("seconds ago and at most {} seconds ahead", nonces.FUTURE),
        ("It holds at most {} of them", nonces.CAPACITY),
        ("current document: fetched at most {} seconds ago", int(did_documents.MAX_AGE)),
        ("though not within {} seconds", int(did_documents.REFETCH_AGE)),
    ],
    "discovery.md": [
        ("All are canonical JSON of at most {},", parsing.MAX_DOCUMENT),
        ("A document is a JSON object of at most {}.", parsing.MAX_DOCUMENT),
        ("possible protocols a source offers at most {} in this order", hello.MAX_CANDIDATES),
        ("At most {} pages and", discovery.MAX_PAGES),
        ("pages and {} descriptions are read", discovery.MAX_AGENTS),
        ("An agent lists at most {}.", parsing.MAX_PROTOCOLS),
        ("the first {} are kept", parsing.MAX_ADDRESSES),
        ("Lists have at most {} entries", parsing.MAX_ENTRIES),
        ("one printable line of {} characters", parsing.MAX_TEXT),
    ],
    "e2ee-profile.md": [
        ("A Hello is at most {}.", hello.MAX_HELLO),
        ("are within {} seconds of the reader's clock", secure_hello.FRESHNESS),
        ("to use the keys; ours is {}.", channel.LIFETIME),
        ("``` At most {}. The DIDs are of its sender", handshake.MAX_FINISHED),
        ("each but the last carries {} of it", records.MAX_PART),
        ("A key is good for {} records", records.MAX_RECORDS),
        ("its reason for closing, at most {} characters", records.MAX_REASON),
    ],
    "language-model.md": [
        ("A request has at most {}, a response too", openai.MAX_REQUEST),
        ("A request has at most {}, a response too", openai.MAX_RESPONSE),
        ("after Retry-After (at most {} seconds)", int(openai.MAX_WAIT)),
        ("test cases | 1 to {} files", package.MAX_FILES),
        ("plain lower-case paths, {} together", package.MAX_SOURCE),
        ("A proposal has at most {} as JSON", questions.MAX_PROPOSAL),
        ("| answer | at most {} characters", questions.MAX_ANSWER),
    ],
    "transports.md": [
        ("application/vnd.treaty.messages.v1`, at most {} and", transport_http.MAX_BODY),
        ("and {} messages: ```", transport_http.MAX_MESSAGES),
        ("until it has a message to send, at most {} seconds", transport_http.HOLD),
        ("A source that sends nothing for {} seconds is gone", http_server.EXPIRY),
        ("It can be asked for during {} seconds", http_server.LINGER),
        ("without a snapshot of at most {},", validation.MAX_SNAPSHOT),
    ],
    "bundles.md": [
        ("not necessarily canonical, at most {}, with these members", bundle.MAX_BUNDLE),
        ("…]}, …], 1 to {}, ascending", bundle.MAX_LEAVES),
        ('"blobs": {HEX: B64, …}, at most {}, each', bundle.MAX_BLOBS),
        ("of URI/evidence.bundle: at most {}, ascending", bundle.MAX_REPORTS),
        ("asked for with since=SIZE; at most {} ", bundle.MAX_CONSISTENCY),
        ("`max_age` ago, and at most {} seconds ahead", checkpoint.CLOCK_SKEW),
        ("its handlers (at most {}:", queries.MAX_HANDLERS),
        ("A list is full with {} handlers", queries.MAX_HANDLERS),
        ("newest statuses of its protocols (at most {}:", MAX_TOPIC_PROTOCOLS),
        ("handlers, or {} protocols of the topic", MAX_TOPIC_PROTOCOLS),
        (".contradiction.json, JCS of at most {}:", contradiction.MAX_CONTRADICTION),
    ],
    "http.md": [
        ("a path of {} bytes (`http.too-large`)", request_filter.MAX_PATH),
        ("a query of {}, headers", request_filter.MAX_QUERY),
        ("headers of {} together", request_head.MAX_HEADER_BYTES),
        ("served only once that is logged; at most {} waits", upload_room.MAX_WAITING),
        ("`application/x-ndjson`: up to {}, one a line", statements.MAX_BATCH),
        ("one a line, {} together", statements.MAX_BATCH_BYTES),
        ("header `Treaty-Statement`: base64, at most {},", blobs.MAX_STATEMENT_HEADER),
        ("`application/json`: one statement's leaf, at most {} bytes", statement.MAX_LEAF),
        ("10 s in all and {} of memory", ContentLimits().memory),
        ("`q` (at most {} characters", search.MAX_QUERY),
        ("`search.query` (more than {})", search.MAX_QUERY_TERMS),
        ("`limit` (1 to {}; 20)", retrieval.MAX_PAGE),
        ("a page looks at {} protocols", ranking.MAX_WALK),
        ("newest first by PEP 440, at most {} -", queries.MAX_VERSIONS),
        ("topics by name, {} a page", topics.MAX_TOPICS),
        ("each with its oldest {} versions", statuses.MAX_URIS),
        ("and the newest; {} a page", standing.MAX_SPEAKERS),
        ("of the {} newest, those of more standing first", standing.MAX_RANKED),
        ("the reason; newest first, {} a page", standing.MAX_CREDITS),
        ("times as large and as fast, {} times at most", quota.MAX_FACTOR),
        ("a public key with a proof, at most {},", ca.MAX_REQUEST),
        ("RFC 3161, at most {} bytes", timestamps.MAX_QUERY),
        ("Rekor v2 hashedrekord, at most {} |", rekor.MAX_REQUEST),
        ("a JWT of at most {} characters", sigstore_token.MAX_TOKEN),
        ("exp − iat is 1 to {} ", sigstore_token.MAX_LIFETIME),
        ("The queues are served in turn, {} statements at a time", fair_queue.QUANTUM),
        ("would wait longer than {} seconds", int(fair_queue.PATIENCE)),
    ],
    "home.md": [
        ("One line of canonical JSON, at most {} bytes", identity.MAX_FILE),
    ],
    "home-caches.md": [
        ("Of other leaves at most {} and", memory.MAX_LEAVES),
        ("and {} of each registry are remembered", memory.MAX_BYTES),
        ("the newest decision and the newest {} leaves stay", memory.MAX_KEPT - 1),
        ("newest first, at most {} negotiated/", agreements.MAX_AGREEMENTS),
        ("in a role; {} such folders are kept", handler_state.MAX_FOLDERS),
        ("keys and {} in a role", validation.MAX_STORED),
        ("a handler keeps {} keys", validation.MAX_STORED_KEYS),
    ],
}
"""The numbers in the sentences of a page: the words around each, and the value in the code. The tables of limits are generated
(`docs.generate.limits`)."""


@cache
def text(name: str) -> str:
    return (DOCS / name).read_text()


def examples(name: str) -> dict[str, str]:
    """The fenced blocks that a paragraph beginning with a bold word introduces, by that word."""
    matches = re.findall(r"^\*\*(\w+)\*\*(?:[^\n]+\n)+\n```\n(.*?)^```$", text(name), re.MULTILINE | re.DOTALL)
    return dict(matches)


def spellings(number: int) -> list[str]:
    """How the specification may write a number."""
    units = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
    return [f"{number:,}", *(f"{number >> bits} {unit}" for bits, unit in units if number % (1 << bits) == 0)]


def test_the_worked_example_is_what_the_code_makes() -> None:
    examples_of = examples("statements.md")
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(examples_of["Seed"].strip()))
    public = key.public_key().public_bytes_raw()
    document, card = examples_of["Document"].encode(), examples_of["Card"].strip().encode()
    assert protocol.parse_card(card).title == "Greeting"
    body = kinds.Publish(
        f"https://registry.example/protocols/{did_key(public)}/greeting/1.0",
        "social/greeting",
        kinds.Blob(protocol.check_document(document), len(document)),
        kinds.Blob(canonical.hex_digest(card), len(card)),
        "negotiated",
    )
    draft = statement.draft(body, log="registry.example", by=(did_key_id(public),), issued=1_790_000_000)
    envelope = draft.seal({did_key_id(public): key.sign(draft.signing_input)})
    assert envelope.payload.decode() == examples_of["Payload"].replace("\n", "")
    assert envelope.signatures[0].hex() == examples_of["Signature"].replace("\n", "")
    assert envelope.id == examples_of["Id"].strip()
    assert leaf_hash(envelope.leaf).hex() == examples_of["Leaf"].strip()
    assert statement.verify(statement.parse(envelope.leaf), {did_key_id(public): public}).statement.id == envelope.id
    for size in (
        f"{len(document)} bytes",
        f"{len(card)} bytes",
        f"{len(envelope.payload)} bytes",
        f"{len(envelope.leaf):,}-byte",
    ):
        assert size in text("statements.md")


def test_every_kind_is_specified_with_its_fields() -> None:
    fences = re.findall(r"^```\n(.*?)^```$", text("statements.md"), re.MULTILINE | re.DOTALL)
    listing = next(fence for fence in fences if fence.startswith("genesis"))
    fields_of = {}
    for part in listing.strip().split("\n\n"):
        heading, *lines = part.splitlines()
        fields_of[heading.split()[0]] = {name for line in lines for name in field_names(line)}
    assert list(fields_of) == list(statement.KINDS)
    for name, kind in statement.KINDS.items():
        assert {field.encode_name for field in msgspec.structs.fields(kind)} == fields_of[name], name


def field_names(line: str) -> list[str]:
    """The names before the gap in a line of the listing: one, or several with commas."""
    return [name.rstrip("?,") for name in re.split(r" {2,}", line.strip())[0].split()]


def test_every_file_is_in_the_index() -> None:
    index = re.findall(r"^\d+\. \[.+\]\((.+)\):", text("README.md"), re.MULTILINE)
    assert sorted([*index, "README.md"]) == sorted(path.name for path in DOCS.glob("*.md"))


def test_every_step_is_specified_under_its_number() -> None:
    headings = re.findall(r"^### (\d+) (\w+)$", text("bundles.md"), re.MULTILINE)
    assert headings == [(str(step.value), step.title) for step in Step]


async def test_every_route_is_specified(api: httpx.AsyncClient) -> None:
    described = (await api.get("/schema/openapi.json")).json()
    routes = {f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods}
    named = {span for span in SPAN.findall(text("http.md")) if re.fullmatch(r"(GET|POST|PUT) /\S+", span)}
    # A page that has no JSON, and messages that other specifications describe.
    ard = {"GET /.well-known/ai-catalog.json", "POST /search", "POST /explore", "GET /agents"}
    assert named == routes | {"GET /schema/openapi.json", "GET /replay", "POST /mcp"} | ard


def test_every_family_has_its_status() -> None:
    families = [family for family in vars(errors).values() if isinstance(family, type) and TreatyError in family.__mro__[1:]]
    assert len(families) == 9
    for family in families:
        status = problem_of(family("some.code", "A sentence.")).status
        assert re.search(rf"^\| {status} \| {family.__name__}\b", text("http.md"), re.MULTILINE), family
        assert re.search(rf"^\| {family.__name__} \|", text("README.md"), re.MULTILINE), family
    assert "429 when a quota is used up" in text("http.md")
    assert problem_of(errors.Unavailable("quota.total", "A sentence.")).status == 429


@pytest.mark.parametrize(("name", "phrase", "cap"), [(name, *cap) for name, caps in CAPS.items() for cap in caps])
def test_caps_are_those_of_the_code(name: str, phrase: str, cap: int) -> None:
    """The phrase is on the page once, whichever number is in it. So the test fails when the code or the page changes."""
    written = " ".join(re.sub(r"<!-- generated: .*?<!-- end -->", "", text(name), flags=re.DOTALL).split())
    before, after = map(re.escape, phrase.split("{}"))
    (number,) = re.findall(rf"{before}(\d[\d,]*(?<!,)(?: [KMG]iB)?){after}", written)
    assert number in spellings(cap)


def test_the_policy_in_the_specification_is_one(tmp_path: Path) -> None:
    section = text("home.md").partition("### policy.toml")[2].partition("\n### ")[0]
    (example,) = re.findall(r"^```toml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "policy.toml").write_text(example)
    policy = load_policy(tmp_path / "policy.toml")
    assert policy.publishers == ("did:wba:example.com",)
    defaults = load_policy(tmp_path / "absent.toml")
    assert tomllib.loads(example).keys() == set(vars(policy))
    for name in ("max_age", "report", "report_delay", "isolation"):
        assert getattr(policy, name) == getattr(defaults, name), name


def test_the_readme_lists_the_ten_steps() -> None:
    steps = re.findall(r"^(\d+)\. \*\*(\w+)\*\*:", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert steps == [(str(step.value), step.title) for step in Step]


def test_links_between_files_lead_somewhere() -> None:
    """Links and headings of parts that only the site has are checked too; their pages are in the repository."""
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", as_in_site(path)):
            linked = (path.parent / target).resolve() if target else path
            assert linked.exists(), f"{path.name}: {target}"
            if anchor:
                assert anchor in anchors(linked), f"{path.name}: {target}#{anchor}"


@cache
def as_in_site(path: Path) -> str:
    return completed(path.read_text(encoding="utf-8"))


@cache
def anchors(path: Path) -> set[str]:
    """The anchors that headings have: lower case, spaces as dashes, other signs left out."""
    headings = re.findall(r"^#+ (.+)$", as_in_site(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
