"""What is kept of negotiations: protocols with their code, and what a person approved of."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from scripted_negotiators import CHANGED, DOCUMENT, NO_PRODUCT, implementation

from treaty_agent.sessions import agreements
from treaty_agent.sessions.agreements import NegotiatedProtocols, accept_implementation
from treaty_agent.sessions.escalation import MAX_APPROVED, Approvals, EscalationLimiter
from treaty_consensus.errors import Malformed, Refused

PEER = "did:wba:shop.example"


def kept(home: Path, document: str = DOCUMENT) -> NegotiatedProtocols:
    protocols = NegotiatedProtocols(home)
    written = implementation(document)
    protocols.keep(accept_implementation(written, document, PEER), written)
    return protocols


def test_what_is_kept_is_there_for_the_next_process(tmp_path: Path) -> None:
    (ours,) = kept(tmp_path).all()
    again = NegotiatedProtocols(tmp_path)
    assert again.all() == []
    assert again.get(ours.hash) == ours
    assert again.document(ours.hash) == DOCUMENT
    assert again.project(ours.hash).topic == ours.topic
    other = NegotiatedProtocols(tmp_path)
    other.load()
    assert other.all() == [ours]
    assert ours.uri == f"urn:treaty:negotiated:{ours.hash}"
    assert other.get("00" * 32) is None


def test_new_code_replaces_the_old(tmp_path: Path) -> None:
    protocols = kept(tmp_path)
    broken = implementation(DOCUMENT, bug=NO_PRODUCT)
    protocols.keep(accept_implementation(broken, DOCUMENT, PEER), broken)
    (ours,) = protocols.all()
    assert ours.package.digest == broken.package.digest
    entry = NegotiatedProtocols(tmp_path).get(ours.hash)
    assert entry is not None
    assert entry.package.digest == broken.package.digest
    assert [path.name for path in (tmp_path / "negotiated").iterdir()] == [ours.hash]


def test_that_it_was_published_is_kept(tmp_path: Path) -> None:
    protocols = kept(tmp_path)
    (ours,) = protocols.all()
    protocols.published(ours, "https://registry.example/protocols/a.example/p/1.0")
    entry = NegotiatedProtocols(tmp_path).get(ours.hash)
    assert entry == dataclasses.replace(ours, published="https://registry.example/protocols/a.example/p/1.0")


@pytest.mark.parametrize("name", ["record.json", "project/document.md", "project/handler/messages.py", "project/manifest.json"])
def test_any_damage_makes_it_absent(tmp_path: Path, name: str) -> None:
    (ours,) = kept(tmp_path).all()
    path = tmp_path / "negotiated" / ours.hash / name
    for content in (path.read_bytes()[:-3], b"", None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        assert NegotiatedProtocols(tmp_path).get(ours.hash) is None
        path.write_bytes(b"x")


def test_later_damage_is_noticed_when_the_document_is_read(tmp_path: Path) -> None:
    protocols = kept(tmp_path)
    (ours,) = protocols.all()
    (tmp_path / "negotiated" / ours.hash / "project" / "document.md").write_text(CHANGED)
    with pytest.raises(Malformed) as damage:
        protocols.document(ours.hash)
    assert damage.value.code == "system.state"


def test_a_project_stays_in_its_folder(tmp_path: Path) -> None:
    written = implementation(DOCUMENT)
    for name in ("../../identity.json", "/etc/passwd", "a/../../../b", ""):
        outside = dataclasses.replace(written, files={**written.files, name: b"x"})
        protocols = NegotiatedProtocols(tmp_path)
        with pytest.raises(Malformed):
            protocols.keep(accept_implementation(outside, DOCUMENT, PEER), outside)
        assert protocols.all() == []
    assert list((tmp_path / "negotiated").iterdir()) == []


def test_code_for_another_document_is_not_taken() -> None:
    with pytest.raises(Refused) as refusal:
        accept_implementation(implementation(DOCUMENT), CHANGED, PEER)
    assert refusal.value.code == "negotiation.code"


def test_the_oldest_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreements, "MAX_NEGOTIATED", 1)
    (first,) = kept(tmp_path).all()
    (second,) = kept(tmp_path, CHANGED).all()
    assert [path.name for path in (tmp_path / "negotiated").iterdir()] == [second.hash]
    assert NegotiatedProtocols(tmp_path).get(first.hash) is None


def test_approvals_survive_the_process_up_to_a_cap(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    assert DOCUMENT not in approvals
    for number in range(MAX_APPROVED + 1):
        approvals.add(str(number))
    approvals.add(DOCUMENT)
    again = Approvals(tmp_path)
    assert DOCUMENT in again
    assert DOCUMENT + " " not in again
    assert "0" not in again
    assert str(MAX_APPROVED) in again
    (tmp_path / "approved.json").write_text("{}")
    assert DOCUMENT not in Approvals(tmp_path)


def test_strangers_call_for_a_person_one_at_a_time_and_not_often() -> None:
    now = [0.0]
    pager = EscalationLimiter(an_hour=2, clock=lambda: now[0])
    assert pager.may_ask()
    assert not pager.may_ask()
    pager.finish()
    assert pager.may_ask()
    pager.finish()
    assert not pager.may_ask()
    now[0] = 3601.0
    assert pager.may_ask()
