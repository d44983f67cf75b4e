"""An author's path on a real registry, from a folder to a consensus, with the appointment as the protocol; and its two agents."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from appointments import Office, free_slots
from run_process import DOMAINS_READY, ROOT, make_run, run_script

from treaty_agent import Agent, Identity, LocalProtocols, OperationError, Session
from treaty_agent.testing import Simulation, run

FOLDER = ROOT / "examples" / "appointment"
DAY, FIRST, SECOND = "2030-05-02", "2030-05-02T09:00", "2030-05-02T09:30"
README = (ROOT / "README.md").read_text(encoding="utf-8")

# Three agents as in README, which `make run` has domains for.
(SETUP,) = re.findall(r"^```sh\n(\. \.venv.*?)^```$", README, re.MULTILINE | re.DOTALL)
AUTHOR = """
URI=https://8080.localhost/protocols/alice.example/appointment/1.0
export TREATY_HOME=agents/alice
treaty new begun --name begun --topic science/begun --summary "Begin." --kind stream --form declarative
treaty test begun
treaty publish begun
treaty test examples/appointment
treaty publish examples/appointment --dry-run
treaty publish examples/appointment
treaty fetch $URI --home agents/bob
treaty test $URI --home agents/bob
treaty stubs $URI --output appointment.py --home agents/bob
python -c 'from appointment import Customer, provide_office'
echo 'recordings = "recordings"' > agents/bob/agent.toml
for pair in "alice bob" "bob carol" "carol alice"; do
    set -- $pair
    python examples/appointments.py agents/$1 agents/$2 $URI
done
cp -rL examples/appointment recorded
treaty record recorded agents/bob/recordings/*-customer-*.json
for name in alice bob carol; do treaty vote scheduling/appointment $URI none --home agents/$name; done
for epoch in 0 1 2; do treaty-registry decide --data .treaty-registry; done
treaty topic scheduling/appointment --explain --home agents/bob
treaty grant did:wba:bob.example
treaty publish examples/appointment --namespace alice.example --home agents/bob && exit 1
treaty deprecate $URI
treaty yank $URI
treaty fetch $URI --home agents/carol-2 && exit 1
treaty activate $URI
"""


@pytest.mark.deep
def test_an_author_comes_from_a_folder_to_a_consensus(tmp_path: Path) -> None:
    with make_run(tmp_path) as registry:
        registry.wait_for(DOMAINS_READY)
        script = SETUP + "cp -r agents/carol agents/carol-2\n" + AUTHOR  # carol-2 has verified nothing before
        done = run_script(registry, tmp_path / "work", script)
    assert done.returncode == 0, done.stdout + done.stderr
    phrases = (
        "nothing was sent",
        "10 lock",
        "The published handler passes: 10 vectors reach 24 of 24",
        "✓ appointment.py",
        "before, 24 of 24",
        "/appointment 1.0 is the consensus",
    )
    places = [done.stdout.index(text) for text in phrases]
    assert places == sorted(places)
    talk = f"{FIRST} is booked: B1\n409: The slot is taken.\nFree: {FIRST}, {SECOND}\n"
    assert done.stdout.count(talk) == 3
    assert "publish.version-exists" in done.stderr
    assert "status.yanked" in done.stderr


async def talk(session: Session, office: Office) -> None:
    """Find, book, meet each refusal, and cancel."""
    assert await free_slots(session, DAY) == [FIRST, SECOND]
    booking = await session.call("book", start=FIRST, name="Ada")
    before = dict(office.slots)
    refused = [
        ("book", {"start": FIRST, "name": "Bob"}, 409),
        ("book", {"start": "2030-05-02T08:00", "name": "Bob"}, 404),
        ("cancel", {"booking": "B9"}, 404),
    ]
    for operation, arguments, status in refused:
        with pytest.raises(OperationError) as failure:
            await session.call(operation, arguments)
        assert failure.value.status == status
        assert office.slots == before
    with pytest.raises(OperationError) as failure:
        await free_slots(session, "2030-05-05")
    assert failure.value.status == 404
    assert await free_slots(session, DAY) == [SECOND]
    assert await session.call("cancel", booking=booking) is None
    with pytest.raises(OperationError) as failure:
        await session.call("cancel", booking=booking)
    assert failure.value.status == 410
    assert await free_slots(session, DAY) == [FIRST, SECOND]


def test_an_office_and_a_customer_in_a_simulation() -> None:
    async def main() -> None:
        async with Simulation([FOLDER]) as simulation:
            agent, office = simulation.agent("office.example"), Office(FIRST, SECOND)
            office.open(agent, simulation.uri("appointment"))
            customer = simulation.agent("customer.example")
            async with (
                simulation.serving(agent),
                customer.connect("office.example", topic="scheduling/appointment") as session,
            ):
                await talk(session, office)

    run(main())


@asynccontextmanager
async def of_files(home: Path) -> AsyncIterator[tuple[Agent, str]]:
    protocols = LocalProtocols([FOLDER])
    async with Agent(Identity.create(), protocols, home=home) as agent:
        yield agent, protocols.uri("appointment")


async def test_an_office_serves_customers_over_sockets(tmp_path: Path) -> None:
    office = Office(*(f"{DAY}T{hour:02}:{minute}" for hour in range(24) for minute in ("00", "30")))
    async with of_files(tmp_path / "office") as (agent, uri), of_files(tmp_path / "customer") as (customer, _):
        office.open(agent, uri)
        async with agent.listen("127.0.0.1", 0) as port:
            for number in range(2):
                async with customer.connect(f"ws://127.0.0.1:{port}", protocols=[uri]) as session:
                    free = [start async for start in first_of(session, 3)]
                    assert free == list(office.slots)[number : number + 3]
                    assert await session.call("book", start=free[0], name="Ada") == f"B{number + 1}"
                    assert len(await free_slots(session, DAY)) == 47 - number  # more than a window


async def first_of(session: Session, count: int) -> AsyncIterator[str]:
    """The first free slots; the list is left before its end."""
    async with session.stream("find", day=DAY) as slots:
        async for slot in slots:
            yield slot["start"]
            count -= 1
            if not count:
                return
