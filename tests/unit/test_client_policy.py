"""Policies: closed by default, and read strictly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from treaty_client import policy
from treaty_client.policy import Policy, load_policy
from treaty_consensus.errors import Malformed, Unavailable
from treaty_consensus.log.witness import Quorum

PAGE = Path(__file__).parents[2] / "docs" / "specification" / "home.md"
ALICE = "did:wba:alice.example"
VKEYS_IN_DOCUMENTATION = [
    "w1.example+11c8f4c8+BEtCePP28bkSi/ZxLF65+cydHDRh+AhwUc5Okowfb9iu",
    "w2.example+f4cdfafa+BPG7LsTqzdoCg6bxHCtaGB6aiE6H29oo6MK8jL61umPv",
    "w3.example+8ec7334c+BNN3mXXtxmksQZESfVAyd+dQJgv0jd6rDW1/bQn754bK",
]


def test_by_default_nothing_runs_and_nothing_is_told() -> None:
    default = Policy()
    assert not default.admits_publisher(ALICE, 1)
    assert (default.report, default.isolation, default.max_age) == (False, "process", 3600)
    assert default.admits_registry("registry.example")


def test_publishers_are_named_and_may_be_pinned_to_a_tenure() -> None:
    policy = Policy([ALICE, "did:wba:bob.example"], tenures={ALICE: 2})
    assert policy.publishers == (ALICE, "did:wba:bob.example")
    assert [policy.admits_publisher(ALICE, tenure) for tenure in (1, 2, 3)] == [False, True, False]
    assert policy.admits_publisher("did:wba:bob.example", 7)
    assert not policy.admits_publisher("did:web:alice.example", 2)


def test_registries_are_all_or_those_named() -> None:
    assert Policy(registries=[]).admits_registry("registry.example") is False
    assert Policy(registries=["registry.example"]).admits_registry("registry.example")
    assert not Policy(registries=["registry.example"]).admits_registry("other.example")


@pytest.mark.parametrize(
    "fields",
    [
        {"publishers": ["alice.example"]},
        {"publishers": ALICE},
        {"registries": ["https://registry.example"]},
        {"tenures": {"x": 1}},
        {"max_age": 0},
        {"max_age": 119},
        {"isolation": "chroot"},
    ],
)
def test_an_impossible_policy_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        Policy(**fields)  # type: ignore[arg-type]


def test_the_documented_example_is_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("\n".join(re.findall(r"^    (.*)$", policy.__doc__ or "", re.MULTILINE)))
    assert load_policy(path) == Policy(publishers=["did:wba:example.com"])
    section = PAGE.read_text().partition("### policy.toml")[2]
    path.write_text(section.partition("```toml\n")[2].partition("```")[0])
    assert load_policy(path) == Policy(
        publishers=["did:wba:example.com"],
        signers=[
            (
                "https://github.com/o/r/.github/workflows/release.yml@refs/heads/main",
                "https://token.actions.githubusercontent.com",
            )
        ],
        registries=["registry.example"],
        tenures={"did:wba:example.com": 1},
        witnesses=Quorum.parse(VKEYS_IN_DOCUMENTATION, 2),
        mirrors={"registry.example": ("https://mirror.example",)},
        via={"registry.example": (f"https://w1.example#{VKEYS_IN_DOCUMENTATION[0]}",)},
        constitutions={"registry.example": "f2ca1bb6c7e907d06dafe4687e579fce76b37e4e93b7605022da52e6ccc26fd2"},
    )


def test_an_absent_file_is_the_default(tmp_path: Path) -> None:
    assert load_policy(tmp_path / "policy.toml") == Policy()


@pytest.mark.parametrize(
    "text",
    [
        "[witnesses]",
        "[witnesses]\nquorum = 1\nkeys = ['w1.example']",
        f"[witnesses]\nquorum = 4\nkeys = {VKEYS_IN_DOCUMENTATION}",
        f"[witnesses]\nquorum = 0\nkeys = {VKEYS_IN_DOCUMENTATION}",
        f"[witnesses]\nquorum = 1\nkeys = {VKEYS_IN_DOCUMENTATION[:1] * 2}",
        f"[witnesses]\nquorum = 1\nurls = []\nkeys = {VKEYS_IN_DOCUMENTATION}",
        "publishers = 1",
        "publisher = []",
        "max_age = 'x'",
        "isolation = 'chroot'",
        "=",
        "publishers = ['x']",
        "[[signers]]",
        f"publishers = {'[' * 10_000}",
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(Malformed):
        load_policy(path)


def test_the_lines_of_the_guide_to_contradictions_are_a_policy(tmp_path: Path) -> None:
    guide = (PAGE.parents[1] / "guides" / "contradictions.md").read_text(encoding="utf-8")
    lines = re.findall(r"^```toml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "policy.toml").write_text("".join(lines))
    policy = load_policy(tmp_path / "policy.toml")
    assert (policy.resolve_publishers, policy.lost_memory) == (True, "refuse")
    assert (Policy().resolve_publishers, Policy().lost_memory) == (False, "warn")
    with pytest.raises(Malformed):
        Policy(lost_memory="ask")  # type: ignore[arg-type]


def test_a_policy_that_cannot_be_read_is_not_an_absent_one(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as failure:
        load_policy(tmp_path)
    assert failure.value.code == "policy.file" and str(tmp_path) in failure.value.message


@pytest.mark.parametrize(
    ("via", "code"),
    [
        ({"registry.example": ["https://w1.example#" + VKEYS_IN_DOCUMENTATION[0][:-1]]}, "note.form"),
        ({"registry.example": ["w1.example#" + VKEYS_IN_DOCUMENTATION[0]]}, "registry.url"),
        ({"registry.example": "https://w1.example#" + VKEYS_IN_DOCUMENTATION[0]}, "policy.file"),
        ({"registry.example": ["https://w1.example#" + VKEYS_IN_DOCUMENTATION[0]] * 17}, "policy.file"),
        ({"Registry": []}, "policy.file"),
    ],
)
def test_a_misspelt_witness_fails_where_its_owner_reads_it(via: dict[str, list[str]], code: str) -> None:
    with pytest.raises(Malformed) as error:
        Policy(via=via)
    assert error.value.code == code
