"""What a catalogue reads from the blobs of a handler: signer and coverage, whatever bytes a stranger sends."""

from __future__ import annotations

import json

import pytest
from claims import answered, bundle_by, bundle_of, certificate_by, vector, wheel_with
from handler_packages import DIST_INFO, FILENAME, package, with_record, zipped
from hypothesis import given, settings
from hypothesis import strategies as st
from registries import blob

from treaty_consensus import kinds
from treaty_registry.catalogue.handler_facts import MAX_VECTORS, HandlerFacts, PackageFacts, read_facts

URI = "https://registry.example/protocols/alice.example/asked/1.0"
ALL = {
    "1.json": vector("client", "ask", "tell"),
    "2.json": answered("server", "ask"),
    "3.json": answered("server", "tell"),
}


def facts(bundle: bytes | None = b"{}", vectors: dict[str, bytes] | None = None, *, is_code_free: bool = False) -> HandlerFacts:
    filename, wheel, entry_point = wheel_with(vectors or {}, uri=URI, document="0" * 64, is_code_free=is_code_free)
    body = kinds.Handler(URI, "0" * 64, filename, blob(wheel), entry_point, blob(bundle or b""))
    return read_facts(body, wheel, bundle)


@pytest.mark.parametrize(
    ("issuer", "signer"),
    [
        ("https://registry.example/sigstore", "did"),
        ("https://other.example/sigstore", "other"),
        ("https://registry.example/sigstore/more", "other"),
        ("https://token.actions.githubusercontent.com", "github-actions"),
        ("https://token.actions.githubusercontent.com/an-enterprise", "github-actions"),
        ("https://token.actions.githubusercontent.com.evil.example", "other"),
        ("https://gitlab.com", "gitlab"),
        ("https://accounts.google.com", "google"),
        ("https://github.com/login/oauth", "github"),
        ("https://login.microsoftonline.com", "microsoft"),
    ],
)
def test_the_issuer_of_the_certificate_says_who_signs(issuer: str, signer: str) -> None:
    assert facts(bundle_by(issuer)).signer == signer
    assert facts(bundle_by(issuer, chain=True, v1=True)).signer == signer


@pytest.mark.parametrize(
    "bundle",
    [
        b"{}",
        b"[]",
        b'"x"',
        b'{"verificationMaterial":null}',
        b'{"verificationMaterial":[]}',
        b'{"verificationMaterial":"certificate"}',
        b'{"verificationMaterial":{"certificate":{"rawBytes":1}}}',
        b'{"verificationMaterial":{"certificate":{"rawBytes":"!"}}}',
        b'{"verificationMaterial":{"x509CertificateChain":{"certificates":[]}}}',
        bundle_of(b"no certificate"),
        bundle_of(b"x" * 20_000),
        bundle_of(certificate_by(None)),
        bundle_by(""),
        b"[" * 100_000,
        None,
    ],
)
def test_a_bundle_without_such_a_certificate_has_no_signer(bundle: bytes | None) -> None:
    assert facts(bundle).signer is None


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_no_certificate_raises(data: bytes) -> None:
    assert facts(bundle_of(data)).signer is None


def test_coverage_is_of_pairs_of_role_and_operation() -> None:
    assert facts().coverage == "none"
    assert facts(vectors=ALL).coverage == "all"
    assert facts(vectors=ALL, is_code_free=True).coverage == "all"
    for name in ALL:
        assert facts(vectors={other: data for other, data in ALL.items() if other != name}).coverage == "some"


@pytest.mark.parametrize(
    "data",
    [
        vector("client", "ask", error=404),
        vector("client", "ask", error=503),
    ],
)
def test_a_listed_error_reaches_an_operation(data: bytes) -> None:
    assert facts(vectors={"1.json": data}).coverage == "some"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[" * 50_000,
        vector("nobody", "ask"),
        vector("client", "nothing"),
        vector("client", "ask", error=405),
        vector("client", "ask", error="x" * 50_000),
        vector("client", "ask", error=["404"]),
        vector("client", "ask", error="9" * 50_000),
        vector("client", "ask").replace(b'"0"', b'["0"]'),
        vector("client", "ask").replace(b'"return"', b'"send"'),
        json.dumps({"title": "t", "role": "client", "steps": []}).encode(),
    ],
)
def test_an_impossible_vector_spoils_no_other(data: bytes) -> None:
    assert facts(vectors={"0.json": data}).coverage == "none"
    assert facts(vectors={"0.json": data, **ALL}).coverage == "all"


def test_vectors_are_read_up_to_a_number_of_bytes() -> None:
    filler = b" " * (MAX_VECTORS - 10)
    assert facts(vectors={"0.json": filler, **ALL}).coverage == "none", "those after it are not read"
    assert facts(vectors={**ALL, "9.json": filler}).coverage == "all"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Requires-Python: >=3.11", ">=3.11"),
        ("Requires-Python: >=3.11,<4", ">=3.11,<4"),
        ("Requires-Python: three", None),
        ("Requires-Python:", None),
        (f"Requires-Python: >=3.{'0' * 200}", None),
        ("Keywords: none", None),
    ],
)
def test_an_index_gets_only_a_specifier_that_installers_can_parse(line: str, expected: str | None) -> None:
    plain = package()
    files = dict(plain.files) | {f"{DIST_INFO}/METADATA": plain.metadata.replace(b"Requires-Python: >=3.11", line.encode())}
    wheel = zipped(with_record(files))
    body = kinds.Handler(URI, "0" * 64, FILENAME, blob(wheel), "a:b", blob(b"{}"))
    assert read_facts(body, wheel, None).package == PackageFacts(blob(files[f"{DIST_INFO}/METADATA"]).sha256, expected)


def test_withdrawn_bytes_say_nothing() -> None:
    body = kinds.Handler(URI, "0" * 64, "treaty_handler_asked-1-py3-none-any.whl", blob(b"x"), "a:b", blob(b"y"))
    assert read_facts(body, None, None) == HandlerFacts(None, None)
    assert read_facts(body, b"no wheel", None) == HandlerFacts(None, None)
