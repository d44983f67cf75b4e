"""A proved peer and a claimed one are two types, and no text with a flag: where a proof is meant, only a proof fits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("client", "protocols/aip/python", "protocols/handoff/python", "protocols/message-routing/python")
MADE = {
    "treaty_aip/security.py": "a signed call",
    "treaty_agent/sessions/flow_core.py": "a signature in each message",
    "treaty_agent/sessions/opening.py": "a pin of a proof",
    "treaty_agent/sessions/wire.py": "the E2EE handshake or a signed request",
    "treaty_handoff/envelopes.py": "a signed message",
}
"""The files that make a `ProvedPeer`, and the proof that each of them has."""
TAKING = {
    "treaty_agent/sessions/deposits.py": {"has": "peer"},
    "treaty_agent/sessions/flow_context.py": {"host_request": "peer"},
    "treaty_agent/sessions/handler_state.py": {"of_proved": "peer"},
    "treaty_agent/sessions/shared_handler.py": {"_make_way": "peer"},
    "treaty_handoff/permissions.py": {"check": "signer", "grant": "signer"},
}
"""The parameters that mean a proof."""
MEANT_AS_PROOF = """
from pathlib import Path

from treaty_agent import CallContext, ClaimedPeer, ProvedPeer, Session
from treaty_agent.sessions.handler_state import SessionStore
from treaty_handoff import Kind, Permissions, build

claim, proof = ClaimedPeer("did:wba:a.example"), ProvedPeer("did:wba:a.example")
SessionStore.of_proved(Path(), "", "", "", proof)
Permissions().grant("a", proof)
SessionStore.of_proved(Path(), "", "", "", claim)  # refused
SessionStore.of_proved(Path(), "", "", "", "did:wba:a.example")  # refused
Permissions().grant("a", claim)  # refused
owner: ProvedPeer = CallContext(peer=claim).peer  # refused
same = claim == proof  # refused


def keep(session: Session) -> ProvedPeer:
    if isinstance(session.peer, ProvedPeer):
        return session.peer
    return session.peer  # refused
"""


@cache
def sources() -> dict[str, ast.Module]:
    places = [ROOT / folder for folder in FOLDERS]
    texts = {path.relative_to(place).as_posix(): path.read_text() for place in places for path in sorted(place.rglob("*.py"))}
    # Only these, because to parse all files takes seconds.
    return {name: ast.parse(text) for name, text in texts.items() if "proved" in text or "ProvedPeer" in text}


def functions(module: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {one.arg: ast.unparse(one.annotation) for one in every if one.annotation is not None}


def test_a_proof_is_made_only_where_one_was_checked() -> None:
    makers = set()
    for name, module in sources().items():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ProvedPeer":
                makers.add(name)
    assert makers == set(MADE)


def test_what_means_a_proof_takes_nothing_else() -> None:
    parameters_of: dict[str, dict[str, str]] = {}
    for name, module in sources().items():
        for function in functions(module):
            for parameter, kind in parameters(function).items():
                if "ProvedPeer" in kind and "ClaimedPeer" not in kind:
                    parameters_of.setdefault(name, {})[function.name] = parameter
                    assert kind in ("ProvedPeer", "ProvedPeer | None"), (name, function.name, kind)
    assert parameters_of == TAKING


def test_no_function_takes_whether_a_peer_is_proved_as_a_flag() -> None:
    flags = [
        (name, function.name)
        for name, module in sources().items()
        for function in functions(module)
        for parameter, kind in parameters(function).items()
        if kind == "bool" and "proved" in parameter
    ]
    assert flags == []


@pytest.mark.deep
def test_mypy_refuses_a_claim_where_a_proof_is_meant(tmp_path: Path) -> None:
    from mypy import api

    source = tmp_path / "claims.py"
    source.write_text(MEANT_AS_PROOF)
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    report, wrong, _ = api.run([*config, "--follow-imports", "silent", "--no-pretty", str(source)])
    assert not wrong, wrong
    refused = [number for number, line in enumerate(MEANT_AS_PROOF.splitlines(), 1) if line.endswith("# refused")]
    assert [int(line.split(":")[1]) for line in report.splitlines() if ": error:" in line] == refused, report
