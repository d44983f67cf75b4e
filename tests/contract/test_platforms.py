"""On macOS and Windows an agent searches, fetches, verifies and votes, and the parts that need Linux say so."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from meetings import identity
from simulated_registry import ALICE, NAME
from socket_registry import SocketRegistry, socket_registry
from working_agents import NEW, SELLER

from treaty_consensus import kinds

PROGRAM = Path(__file__).parents[1] / "support" / "other_platform.py"
PLATFORMS = pytest.mark.parametrize("platform", ["darwin", "win32"])
LOCKS = """
import threading, time
from pathlib import Path
from treaty_io import durable
from treaty_agent.authentication.nonces import NonceMemory
from treaty_consensus.errors import TreatyError
here = Path({folder!r})
lock, order = here / "deep" / "lock", []
with durable.exclusive(lock):
    try:
        durable.open_locked(lock, wait=False)
    except BlockingIOError:
        order.append("held")
    def other():
        with durable.exclusive(lock):
            order.append("other")
    waiting = threading.Thread(target=other)
    waiting.start()
    time.sleep(0.3)
    order.append("first")
waiting.join()
memory = NonceMemory(here / "nonces", clock=lambda: 1000.0, capacity=2, boot="-")
try:
    NonceMemory(here / "nonces")
except TreatyError as error:
    order.append(error.code)
for number in range(3000):  # the file is written anew on the way
    memory.accept("did:key:a", str(number), 1000 + number)
memory.close()
durable.write(here / "deep" / "file", b"whole", mode=0o600)
print(*order, (here / "deep" / "file").read_bytes())
"""
MEETING = """
import asyncio
from pathlib import Path
from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols
from treaty_client.authoring.new_project import NewProtocol, write_project
async def meet(here):
    write_project(here / "weather", NewProtocol("weather", "a/b"))
    protocols = LocalProtocols([here / "weather"])
    (uri,) = protocols.uris
    server = Agent(Identity.create(), protocols, AgentConfig(home=here / "server"))
    client = Agent(Identity.create(), protocols, AgentConfig(home=here / "client"))
    @server.provides(uri)
    async def getItem(item: str) -> dict[str, str]:
        return {{"text": item.upper()}}
    async with server, client, server.listen("127.0.0.1", 0) as port:
        async with client.connect(f"ws://127.0.0.1:{{port}}", protocols=[uri]) as session:
            print((await session.call("getItem", item="rain"))["text"])
asyncio.run(meet(Path({folder!r})))
"""
TOPIC = "commerce/product-info"


async def run(platform: str, *command: str) -> tuple[int, str, str]:
    """Status, output and error output of `other_platform`."""
    arguments = ("-X", "warn_default_encoding", str(PROGRAM), platform, *command)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe, stderr=pipe)
    out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


class Home:
    """An agent on another system, with an identity, that trusts the registry and no one else."""

    def __init__(self, platform: str, registry: SocketRegistry, folder: Path) -> None:
        assert registry.network.ca
        address = registry.network.resolve[NAME.origin]
        self.platform = platform
        self.options = ("--home", str(folder / "home"), "--json")
        self.network = (f"--resolve={NAME.origin}={address.ip}:{address.port}", "--ca", str(registry.network.ca))
        identity(SELLER).save(folder / "home" / "identity.json")

    async def says(self, *command: str, online: bool = True) -> Any:
        """What a command prints."""
        status, out, errors = await run(self.platform, "treaty", *command, *self.options, *(self.network if online else ()))
        assert (status, errors) == (0, ""), out + errors
        return json.loads(out)


@pytest.fixture
async def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    async with socket_registry(tmp_path) as server:
        answer, hash_ = server.registry.answer, server.registry.document_of(NEW).sha256
        summary = {
            "uri": NEW,
            "topic": TOPIC,
            "title": "T",
            "hash": hash_,
            "publisher": ALICE.did,
            "status": "active",
        }

        def listing(request: Any) -> tuple[int, bytes]:
            """A simulated registry has no list of protocols."""
            return (200, json.dumps({"protocols": [summary]}).encode()) if request.url.path == "/protocols" else answer(request)

        monkeypatch.setattr(server.registry, "answer", listing)
        yield server


@pytest.mark.sample(1)
@PLATFORMS
async def test_every_module_is_imported(platform: str) -> None:
    status, out, errors = await run(platform, "import")
    assert status == 0, errors
    assert int(out) > 200


@PLATFORMS
async def test_locks_exclude_and_files_are_written(platform: str, tmp_path: Path) -> None:
    status, out, errors = await run(platform, "code", LOCKS.format(folder=str(tmp_path)))
    assert status == 0, errors
    assert out == "held first other system.file b'whole'\n"


@pytest.mark.deep
@pytest.mark.sample(1)
@PLATFORMS
async def test_an_agent_searches_fetches_verifies_and_votes(platform: str, registry: SocketRegistry, tmp_path: Path) -> None:
    home = Home(platform, registry, tmp_path)
    await home.says("trust", "add", str(NAME), online=False)
    await home.says("policy", "allow", ALICE.did, online=False)
    assert (await home.says("search", "product"))["protocols"][0]["uri"] == NEW
    assert (await home.says("info", NEW))["hash"] == registry.registry.document_of(NEW).sha256
    assert (await home.says("diff", NEW, NEW))["lines"] == []
    assert await home.says("open", NEW, online=False) == {"url": NEW}

    fetched = tmp_path / "fetched"
    await home.says("fetch", NEW, "--output", str(fetched))
    assert (await home.says("verify", str(fetched), online=False))["uri"] == NEW
    status, out, errors = await run(platform, "treaty", "verify", NEW, *home.options[:2], *home.network)
    assert (status, re.findall(r"✓ +(\d+) ", out)) == (0, [str(step) for step in range(1, 11)]), out + errors

    before = registry.registry.size
    await home.says("vote", TOPIC, NEW)
    (ballot,) = (statement.body for _, statement in registry.registry.statements() if isinstance(statement.body, kinds.Ballot))
    assert registry.registry.size == before + 1
    assert ballot.tiers == ((registry.registry.document_of(NEW).sha256,),)


@pytest.mark.sample(1)
@PLATFORMS
async def test_agents_speak_a_protocol_without_code(platform: str, tmp_path: Path) -> None:
    status, out, errors = await run(platform, "code", MEETING.format(folder=str(tmp_path)))
    assert (status, out) == (0, "RAIN\n"), errors


@pytest.mark.deep
@pytest.mark.sample(1)
@PLATFORMS
async def test_the_sandbox_says_that_it_needs_linux(platform: str, registry: SocketRegistry, tmp_path: Path) -> None:
    home = Home(platform, registry, tmp_path)
    await home.says("trust", "add", str(NAME), online=False)
    status, out, errors = await run(platform, "treaty", "doctor", *home.options, *home.network)
    assert status == 1, errors
    (sandbox,) = (check for check in json.loads(out)["checks"] if check["check"] == "sandbox")
    assert sandbox["code"] == "system.missing"
    assert f"needs Linux, and this is {platform}" in sandbox["said"] and "container" in sandbox["fix"]


@PLATFORMS
async def test_a_registry_says_that_it_needs_linux(platform: str, tmp_path: Path) -> None:
    status, out, errors = await run(platform, "treaty-registry", "serve", "--data", str(tmp_path / "data"), "--json")
    assert (status, json.loads(out)["error"]["code"], errors) == (1, "system.missing", "")
    assert not (tmp_path / "data").exists()


HELD = {
    "search, show, fetch, verify, vote": test_an_agent_searches_fetches_verifies_and_votes,
    "agents that speak protocols without code": test_agents_speak_a_protocol_without_code,
    "locks and whole files": test_locks_exclude_and_files_are_written,
    "handlers with code, in the sandbox": test_the_sandbox_says_that_it_needs_linux,
    "a registry": test_a_registry_says_that_it_needs_linux,
}
"""The rows of the table in README.md, each with the test that holds it."""


def test_each_row_of_the_table_is_held_by_a_test() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    table = text.partition("| | Linux | macOS | Windows |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    assert [row[0] for row in rows] == list(HELD)
    lacking = {row[0] for row in rows if row[1:] == ["yes", "`system.missing`", "`system.missing`"]}
    assert lacking == {name for name, test in HELD.items() if "says_that_it_needs_linux" in test.__name__}
    assert all(row[1:] == ["yes"] * 3 for row in rows if row[0] not in lacking)
