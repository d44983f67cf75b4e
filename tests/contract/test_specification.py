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

from treaty_client.anp import frame
from treaty_client.anp.e2ee import channel, handshake, records
from treaty_client.anp.e2ee import hello as secure_hello
from treaty_client.anp.flow_profile import messages as flow_messages
from treaty_client.anp.flow_profile import processor as flow_processor
from treaty_client.anp.flow_profile import terms as flow_terms
from treaty_client.anp.flow_profile import transfer as flow_transfer
from treaty_client.anp.hello_profile import hello, messages
from treaty_client.audit import auditor as anchor_files
from treaty_client.identity import identity
from treaty_client.negotiators import openai, package, questions, test_cases
from treaty_client.network import did_documents, egress
from treaty_client.network.authentication import message_signature, nonces
from treaty_client.network.discovery import client as discovery
from treaty_client.network.discovery import parsing
from treaty_client.network.transport import http as transport_http
from treaty_client.network.transport import http_server
from treaty_client.policy import load_policy
from treaty_client.protocols import attestation, project
from treaty_client.protocols.verification import checkpoint, contradiction
from treaty_client.protocols.verification.steps import Step
from treaty_client.registries import bundle, memory
from treaty_client.sandbox import bubblewrap, schemas, validation, vectors
from treaty_client.sandbox.worker import framing
from treaty_client.sessions import agreements, handler_host
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
from treaty_registry.problems import problem_of
from treaty_registry.routes import blobs, statements
from treaty_registry.serving import request_filter, topics
from treaty_registry.serving.bundles import MAX_TOPIC_PROTOCOLS
from treaty_registry.sigstore_authority import ca, rekor, timestamps

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "specification"

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


CAPS = {
    "flow-profile.md": [
        *(flow_messages.MAX_MESSAGE, flow_messages.MAX_APPLICATION, flow_transfer.MAX_DATA, flow_terms.MIN_CHUNK),
        *(flow_processor.MAX_REMEMBERED, flow_processor.MAX_RECENT, agreements.MAX_AGREEMENTS),
    ],
    "hello-profile.md": [
        *(frame.MAX_PAYLOAD, hello.MAX_HELLO, hello.MAX_CANDIDATES, protocol.MAX_DOCUMENT),
        *(messages.MAX_MESSAGE, messages.MAX_VALUES, messages.MAX_SUMMARY, messages.MAX_QUESTION, messages.MAX_ID),
        *(messages.MAX_SEQUENCE, test_cases.MAX_TEXT, test_cases.MAX_CASES, test_cases.MAX_TITLE, test_cases.MAX_EXPECTED),
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
        *(project.MAX_TOML, project.MAX_VECTORS, vectors.MAX_VECTOR),
        *(kinds.MAX_BUNDLE, attestation.MAX_STATEMENT, framing.MAX_FRAME, bubblewrap.SandboxLimits().reply),
    ],
    "identity-on-the-wire.md": [
        *(message_signature.MAX_HEADER, message_signature.MAX_NONCE, nonces.LIFETIME, nonces.FUTURE, nonces.CAPACITY),
        *(int(did_documents.MAX_AGE), int(did_documents.REFETCH_AGE)),
    ],
    "discovery.md": [
        *(egress.MAX_BODY, hello.MAX_CANDIDATES, discovery.MAX_PAGES, discovery.MAX_AGENTS),
        *(parsing.MAX_PROTOCOLS, parsing.MAX_ADDRESSES, parsing.MAX_ENTRIES, parsing.MAX_TEXT),
    ],
    "e2ee-profile.md": [
        *(hello.MAX_HELLO, secure_hello.FRESHNESS, channel.LIFETIME, handshake.MAX_FINISHED),
        *(records.MAX_PART, records.MAX_RECORDS, records.MAX_REASON),
    ],
    "language-model.md": [
        *(openai.MAX_REQUEST, openai.MAX_RESPONSE, int(openai.MAX_WAIT)),
        *(package.MAX_FILES, package.MAX_SOURCE, questions.MAX_PROPOSAL, questions.MAX_ANSWER),
    ],
    "transports.md": [
        *(transport_http.MAX_BODY, transport_http.MAX_MESSAGES, transport_http.HOLD, http_server.EXPIRY, http_server.LINGER),
        validation.MAX_SNAPSHOT,
    ],
    "bundles.md": [
        *(bundle.MAX_BUNDLE, bundle.MAX_LEAVES, bundle.MAX_BLOBS, bundle.MAX_CONSISTENCY, checkpoint.CLOCK_SKEW),
        *(queries.MAX_HANDLERS, MAX_TOPIC_PROTOCOLS, contradiction.MAX_CONTRADICTION),
    ],
    "http.md": [
        *(request_filter.MAX_PATH, request_filter.MAX_QUERY, request_filter.MAX_HEADER_BYTES, uploads.MAX_WAITING),
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
        *(fair_queue.QUANTUM, int(fair_queue.PATIENCE)),
    ],
    "home.md": [
        identity.MAX_FILE,
        *(memory.MAX_LEAVES, memory.MAX_BYTES, memory.MAX_KEPT - 1),
        agreements.MAX_AGREEMENTS,
        handler_host.MAX_FOLDERS,
        validation.MAX_STORED,
        validation.MAX_STORED_KEYS,
    ],
}
"""The numbers in the sentences of a page. Its tables of limits are generated (`docs.generate.limits`)."""


@cache
def text(name: str) -> str:
    return (DOCS / name).read_text()


def examples(name: str) -> dict[str, str]:
    """The fenced blocks that a paragraph beginning with a bold word introduces, by that word."""
    found = re.findall(r"^\*\*(\w+)\*\*(?:[^\n]+\n)+\n```\n(.*?)^```$", text(name), re.MULTILINE | re.DOTALL)
    return dict(found)


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
    written = re.sub(r"<!-- generated: .*?<!-- end -->", "", text(name), flags=re.DOTALL)
    for cap in CAPS[name]:
        forms = "|".join(map(re.escape, spellings(cap)))
        assert re.search(rf"(?<![\d,.])(?:{forms})(?![\d,.]\d)", written), cap


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
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", path.read_text()):
            linked = (path.parent / target).resolve() if target else path
            assert linked.exists(), f"{path.name}: {target}"
            if anchor:
                assert anchor in anchors(linked), f"{path.name}: {target}#{anchor}"


def anchors(path: Path) -> set[str]:
    """The anchors that headings have: lower case, spaces as dashes, other signs left out."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
