"""A peer that lies about its role, or writes hostile roles into its Hello: nothing of the other role runs or is loaded.

The liars are agents with a manifest of their own for the same document. So their own checks admit anything.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from meta_peers import FRESH, URI, buyer, destination_hello, rejection_in, shop, source_hello, verdict
from msgspec import structs

from treaty_agent import Agent, Identity, LocalProtocols, OperationError, Refused, Session, TreatyError
from treaty_anp.hello_profile.actions import Load
from treaty_anp.hello_profile.hello import MAX_CANDIDATE_ROLES, Provided

PAYMENT = Path(__file__).parents[1] / "support" / "payment"
NAME = "https://registry.example/protocols/example.com/payment/1.0"
PAYEE = Provided(FRESH[URI].protocol_hash, True, "payee", ("payer",))
HOSTILE = [
    "",
    "Payer",
    "a" * 33,
    "a" * 30_000,
    "payer\n",
    "pay\x00er",
    "\x1b[2J",
    "пayer",
    "-payer",
    "__proto__",
    7,
    [],
    {},
    True,
]


def protocols(folder: Path, change: Callable[[dict[str, Any]], object] | None = None) -> LocalProtocols:
    """The payment protocol in a folder, with changed roles."""
    shutil.copytree(PAYMENT, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    if change is not None:
        change(manifest["roles"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return LocalProtocols({NAME: folder})


class Recording:
    """Functions for all operations, which note what runs."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        async def pay(amount: int) -> str:
            self.ran.append("pay")
            return "paid"

        async def approve(amount: int) -> bool:
            self.ran.append("approve")
            return True

        async def count() -> int:
            self.ran.append("count")
            return 1

        async def numbers() -> AsyncIterator[int]:
            self.ran.append("numbers")
            yield 1

        self.functions: list[Callable[..., Any]] = [pay, approve, count, numbers]


@asynccontextmanager
async def agent(
    folder: Path, change: Callable[[dict[str, Any]], object] | None = None, identity: Identity | None = None
) -> AsyncIterator[Agent]:
    async with Agent(identity or Identity.create(), protocols(folder / "protocol", change), home=folder / "home") as one_agent:
        yield one_agent


@asynccontextmanager
async def listening(agent: Agent, functions: list[Callable[..., Any]], role: str, at: int = 0) -> AsyncIterator[str]:
    for function in functions:
        agent.provides(NAME, role=role)(function)
    async with agent.listen("127.0.0.1", at) as port:
        yield f"ws://127.0.0.1:{port}"


def calls_everything(roles: dict[str, Any]) -> None:
    roles["payer"]["calls"] = ["pay", "approve", "numbers", "rang"]


def speaks_with_itself(roles: dict[str, Any]) -> None:
    roles["payer"]["peer"] = "payer"


@pytest.mark.threat(173)
async def test_an_initiator_runs_no_operation_of_another_role(tmp_path: Path) -> None:
    own = Recording()
    async with agent(tmp_path / "honest") as honest, agent(tmp_path / "liar", calls_everything) as liar:
        async with (
            listening(honest, own.functions, "payee") as url,
            liar.connect(url, protocols=[NAME], role="payer", serving=Recording().functions) as session,
        ):
            for operation, arguments in [("approve", {"amount": 1}), ("numbers", {})]:
                with pytest.raises(OperationError):
                    await consumed(session, operation, arguments)
            await session.call("rang", bell="door")
            assert own.ran == []
            assert await session.call("pay", amount=1) == "paid"  # its own role's; the session goes on
        assert own.ran == ["pay"]


@pytest.mark.threat(173)
async def test_a_responder_runs_no_operation_of_another_role(tmp_path: Path) -> None:
    def change(roles: dict[str, Any]) -> None:
        roles["payee"]["calls"] = ["pay", "count", "approve", "numbers"]

    own = Recording()
    async with agent(tmp_path / "honest") as honest, agent(tmp_path / "liar", change) as liar:
        async with (
            listening(liar, Recording().functions, "payee") as url,
            honest.connect(url, protocols=[NAME], role="payer", serving=own.functions) as session,
        ):
            await session.call("pay", amount=1)
            (theirs,) = liar.sessions()
            for operation, arguments in [("pay", {"amount": 1}), ("count", {})]:
                with pytest.raises(OperationError):
                    await theirs.call(operation, **arguments)
            assert own.ran == []
            assert await theirs.call("approve", amount=1)
        assert own.ran == ["approve"]


@pytest.mark.threat(173)
@pytest.mark.parametrize("liar_listens", [False, True])
async def test_a_second_payer_is_refused_despite_its_manifest(tmp_path: Path, liar_listens: bool) -> None:
    ran = Recording()
    async with agent(tmp_path / "honest") as honest, agent(tmp_path / "liar", speaks_with_itself) as liar:
        one, other = (liar, honest) if liar_listens else (honest, liar)
        async with listening(one, ran.functions, "payer") as url:
            with pytest.raises(Refused) as refused:
                async with other.connect(url, protocols=[NAME], role="payer", serving=ran.functions) as session:
                    await session.call("pay", amount=1)
            assert refused.value.code == "session.role"
            assert (one.sessions(), ran.ran) == ([], [])


@pytest.mark.threat(173)
async def test_a_remembered_peer_in_another_role_is_refused(tmp_path: Path) -> None:
    own, theirs, identity = Recording(), Recording(), Identity.create()
    async with agent(tmp_path / "honest") as honest:

        async def pay(url: str) -> None:
            async with honest.connect(url, protocols=[NAME], role="payer", serving=own.functions) as session:
                await session.call("pay", amount=1)

        async with agent(tmp_path / "shop", identity=identity) as payee, listening(payee, theirs.functions, "payee") as url:
            await pay(url)
        # The same agent later: the hash is confirmed, and the initiator has sent its Hello and perhaps a call by then.
        port = int(url.rpartition(":")[2])
        async with (
            agent(tmp_path / "again", speaks_with_itself, identity) as payer,
            listening(payer, theirs.functions, "payer", port),
        ):
            with pytest.raises(Refused) as refused:
                await pay(url)
        assert (refused.value.code, own.ran, theirs.ran) == ("session.role", [], ["pay"])


async def consumed(session: Session, operation: str, arguments: dict[str, Any]) -> list[Any]:
    if operation == "numbers":
        return [item async for item in session.stream(operation, **arguments)]
    return [await session.call(operation, **arguments)]


# Hostile Hellos, at the machine


@pytest.mark.threat(173)
@pytest.mark.parametrize("role", HOSTILE)
def test_a_sources_hostile_role_is_refused_before_a_choice(role: object) -> None:
    machine = shop({URI: PAYEE})
    value = json.loads(source_hello().format())
    value["metaProtocol"]["candidateRoles"] = {URI: role}
    actions = machine.receive(json.dumps(value), 0.0)
    assert rejection_in(actions).startswith("hello.form: ")
    assert (machine.agreement, machine.peer) == (None, None)


@pytest.mark.threat(173)
@pytest.mark.parametrize("member", ["role", "peerRole"])
@pytest.mark.parametrize("role", HOSTILE)
def test_a_destinations_hostile_role_is_refused_unbelieved(role: object, member: str) -> None:
    machine = buyer(structs.replace(source_hello(), candidate_roles={URI: "payer"}))
    value = json.loads(destination_hello(selected=URI).format())
    value["metaProtocol"][member] = role
    actions = machine.receive(json.dumps(value), 0.0)
    assert not any(isinstance(action, Load) for action in actions)
    assert machine.error is not None
    assert (machine.error.code, machine.agreement, machine.peer) == ("hello.form", None, None)


@pytest.mark.threat(173)
@pytest.mark.parametrize("count", [MAX_CANDIDATE_ROLES, MAX_CANDIDATE_ROLES + 1, 1000, 100_000])
def test_the_number_of_roles_is_bounded(count: int) -> None:
    machine = shop({URI: PAYEE})
    value = json.loads(source_hello().format())
    value["metaProtocol"]["candidateRoles"] = {URI: "payer", **{f"x:{number}": "payer" for number in range(count - 1)}}
    actions = machine.receive(json.dumps(value), 0.0)
    if count == MAX_CANDIDATE_ROLES:
        assert machine.agreement is not None
        return
    assert rejection_in(actions).split(":")[0] in ("hello.form", "canonical.too-large")
    assert machine.agreement is None


@pytest.mark.threat(173)
def test_a_destination_that_mistakes_the_source_is_refused() -> None:
    machine = buyer(structs.replace(source_hello(), candidate_roles={URI: "payer"}))
    answer = structs.replace(destination_hello(selected=URI), role="payee", peer_role="auditor")
    machine.receive(answer.format(), 0.0)
    assert machine.error is not None
    assert (machine.error.code, machine.agreement) == ("session.role", None)


@pytest.mark.threat(173)
def test_a_refusal_names_the_code_only_if_it_begins_with_it() -> None:
    for summary, code in [
        ("session.role: no", "session.role"),
        ("session.roles: no", "hello.refused"),
        ("no session.role", "hello.refused"),
    ]:
        machine = buyer()
        machine.receive(verdict(0, "rejected", summary=summary), 0.0)
        assert machine.error is not None
        assert machine.error.code == code


@pytest.mark.threat(173)
def test_errors_of_hostile_roles_can_be_printed() -> None:
    machine = shop({URI: PAYEE})
    value = json.loads(source_hello().format())
    value["metaProtocol"]["candidateRoles"] = {URI: "\x1b[2Jpayer"}
    machine.receive(json.dumps(value), 0.0)
    assert isinstance(machine.error, TreatyError)
    assert str(machine.error).isprintable()
