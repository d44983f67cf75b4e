"""Who stands behind a DID."""

from __future__ import annotations

from importlib import resources

import pytest
from simulated_log import SUFFIXES

from treaty_consensus.did import did_key
from treaty_consensus.election.principals import PrincipalDirectory, SuffixList
from treaty_consensus.errors import Malformed

KEY = did_key(bytes(32))


@pytest.fixture
def directory() -> PrincipalDirectory:
    """An open electorate."""
    directory = PrincipalDirectory()
    directory.read_domains_by("list", SuffixList(SUFFIXES))
    return directory


def test_every_did_with_a_domain_counts_in_development() -> None:
    directory = PrincipalDirectory()
    for did in ("did:wba:alpha.example", "did:wba:alpha.example:users:someone", "did:web:alpha.example%3A8443"):
        assert directory.principal_of(did) == did
    for did in (KEY, "did:wba:localhost"):
        assert directory.principal_of(did) is None


def test_the_root_of_a_registrable_domain_speaks_for_it(directory: PrincipalDirectory) -> None:
    assert directory.principal_of("did:wba:alpha.example") == "alpha.example"
    assert directory.principal_of("did:web:alpha.example") == "alpha.example"
    assert directory.principal_of("did:wba:alpha.co.example") == "alpha.co.example"


@pytest.mark.parametrize(
    "did",
    [
        KEY,
        "did:wba:sub.alpha.example",
        "did:wba:alpha.example:users:someone",
        "did:wba:alpha.example%3A8443",
        "did:wba:co.example",
        "did:wba:customer.hosting.example",
        "did:treaty:github.com:alpha",
        "did:treaty:alpha.example",
        "did:wba:localhost",
    ],
)
def test_everybody_else_speaks_for_nobody(directory: PrincipalDirectory, did: str) -> None:
    assert directory.principal_of(did) is None


def test_whoever_was_granted_a_domain_speaks_for_it(directory: PrincipalDirectory) -> None:
    helper = "did:wba:alpha.example:users:helper"
    assert directory.principal_of(helper) is None
    directory.grant("alpha.example:users", helper, "did:wba:alpha.example:users")
    assert directory.principal_of(helper) is None, "a part of the name is not the name"
    directory.grant("alpha.example", helper, "did:wba:alpha.example")
    directory.grant("bravo.example", helper, "did:wba:bravo.example")
    assert directory.principal_of(helper) == "alpha.example", "the first grant counts"
    directory.grant("bravo.example", "did:wba:alpha.example", "did:wba:bravo.example")
    assert directory.principal_of("did:wba:alpha.example") == "alpha.example", "a root speaks for its own"
    directory.grant("co.example", KEY, "did:wba:co.example")
    assert directory.principal_of(KEY) is None, "nobody owns a public suffix"


def test_another_list_makes_other_principals(directory: PrincipalDirectory) -> None:
    assert directory.principal_of("did:wba:alpha.co.example") == "alpha.co.example"
    other = SuffixList(SUFFIXES.replace(b"co.example\n", b""))
    directory.read_domains_by("other", other)
    assert directory.principal_of("did:wba:alpha.co.example") is None
    directory.read_domains_by(None, None)
    assert directory.principal_of("did:wba:alpha.co.example") == "did:wba:alpha.co.example"


def test_the_private_section_of_the_list_is_ignored() -> None:
    data = resources.files("publicsuffixlist").joinpath("public_suffix_list.dat").read_bytes()
    suffixes = SuffixList(data)
    assert suffixes.registrable("someone.github.io") == "github.io"
    assert suffixes.registrable("www.example.co.uk") == "example.co.uk"
    assert suffixes.registrable("co.uk") is None
    assert suffixes.is_registrable("example.com") and not suffixes.is_registrable("www.example.com")
    assert not suffixes.is_registrable("com") and not suffixes.is_registrable("Example.com")


@pytest.mark.parametrize(
    "data",
    [b"", b"example\n", b"\xff\xfe", b"// ===END ICANN DOMAINS===\n", b"// ===BEGIN ICANN DOMAINS===\na..b\n"],
)
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed) as refused:
        SuffixList(data)
    assert refused.value.code == "parameters.value"
