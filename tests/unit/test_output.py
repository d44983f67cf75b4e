"""What commands print of foreign texts does nothing to a terminal."""

from __future__ import annotations

import json

import pytest

from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.replies import Page, SearchResult
from treaty_command.context import Options
from treaty_command.output import Output
from treaty_command.search import search as search_command
from treaty_consensus.errors import Refused
from treaty_io.codes import ClientStatusCode
from treaty_io.errors import PeerUnavailable, RegistryUnavailable

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\u2028\x9b31m\U000e0001"


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    """All that was printed, without its line ends."""
    output, errors = capsys.readouterr()
    return (output + errors).replace("\n", "")


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_that_is_printed_works_on_the_terminal(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json)
    output.say(f"First {HOSTILE}\nsecond line")
    output.result({"text": f"数 {HOSTILE}"}, f"Result {HOSTILE}")
    printed_text = capsys.readouterr().out
    assert printed_text.replace("\n", "").isprintable()
    assert (json.loads(printed_text) == {"text": f"数 {HOSTILE}"}) if as_json else ("\nsecond line\n" in printed_text)
    assert ("数" in printed_text) is as_json
    output.error(Refused("some.code", HOSTILE, fix=HOSTILE))
    text = shown(capsys)
    assert text.isprintable() and "some.code" in text


def test_the_data_of_an_error_are_in_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    error = PeerUnavailable("session.peer-lost", "It is gone.", fix="Wait.")
    Output(True).error(error)
    plain = {"code": "session.peer-lost", "message": "It is gone.", "fix": "Wait."}
    data = {"family": "Unavailable", "retryable": True, "origin": "network"}
    assert json.loads(capsys.readouterr().out) == {"error": plain | data}
    error.peer_code, error.trace_id, error.clock_difference = "session.idle", "ab" * 16, -300.0
    Output(True).error(error)
    more = {"origin": "peer", "peerCode": "session.idle", "traceId": "ab" * 16, "clockDifference": -300.0}
    assert json.loads(capsys.readouterr().out) == {"error": plain | data | more}


def test_a_failed_step_has_the_data_of_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    for cause, family, retryable in (
        (RegistryUnavailable("registry.unreachable", "No."), "Unavailable", True),
        (None, "Untrusted", False),
    ):
        error = VerificationFailed(9, ClientStatusCode.REVOKED, "No.")
        error.__cause__ = cause
        Output(True).error(error)
        said = json.loads(capsys.readouterr().out)["error"]
        assert (said["family"], said["retryable"], said["origin"], said["step"]) == (family, retryable, "registry", 9)


def test_what_a_registry_lists_forges_no_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    summary = SearchResult(HOSTILE, "a/b", f"{HOSTILE}\nhttps://forged.example/", "0" * 64, "did:wba:a.example", "published")

    async def search(client: RegistryClient, words: str, **options: object) -> Page:
        return Page((summary,))

    monkeypatch.setattr(RegistryClient, "search", search)
    monkeypatch.setattr(Options, "trusted", lambda options: _Trusted())
    search_command("words", options=Options())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


class _Trusted:
    """A registry that is trusted."""

    class name:  # noqa: N801
        base_url = "https://registry.example"
        origin = "registry.example"
