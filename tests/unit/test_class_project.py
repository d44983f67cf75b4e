"""`treaty new --from`: the class of the guide becomes a protocol that two agents speak. A class that cannot leaves no folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Literal, TypedDict

import pytest

from treaty_agent import Agent, AgentConfig, CallContext, Identity, LocalProtocols, OperationError
from treaty_agent.authoring.class_project import load_class, write_class_project
from treaty_client.authoring.check import check_project
from treaty_client.authoring.new_project import NewProtocol
from treaty_client.protocols.project import load_project
from treaty_consensus.errors import Conflict, Malformed

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "handlers.md").read_text(encoding="utf-8")
SECTION = GUIDE.partition("## From a class")[2].partition("## From an idea")[0]
NEW = NewProtocol("shop", "commerce/shop")
COMMAND = "from treaty_command.main import main; main()"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


def started(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TREATY_HOME": str(folder / "home")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_the_guide_goes_from_a_class_to_an_answered_call(tmp_path: Path) -> None:
    [module, application], [line] = blocks("python"), blocks("sh")
    (tmp_path / "greeter.py").write_text(module)
    new = started(tmp_path, "-c", COMMAND, *line.split()[1:])
    assert new.returncode == 0, new.stdout + new.stderr
    tested = started(tmp_path, "-c", COMMAND, "test", "greeting", "--json")
    coverage = json.loads(tested.stdout)["coverage"]
    assert (tested.returncode, coverage["cells"], coverage["missed"]) == (0, 4, [])
    (tmp_path / "application.py").write_text(application)
    spoken = started(tmp_path, "application.py")
    assert spoken.stdout == "Hello, Ada.\n", spoken.stderr


def test_the_class_that_the_readme_names_becomes_a_protocol(tmp_path: Path) -> None:
    line = "treaty new ride --topic travel/taxi --from examples.taxi:Taxi"
    assert f"\n{line}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    taxi = load_class("examples.taxi:Taxi")
    paths = asyncio.run(write_class_project(tmp_path / "ride", taxi, NewProtocol("ride", "travel/taxi")))
    assert tmp_path / "ride" / "manifest.json" in paths


class Line(TypedDict):
    product: str
    count: int


@dataclass
class Order:
    due: date
    lines: list[Line]
    speed: Literal["slow", "fast"] = "slow"


class Base:
    """This is not about the shop."""

    def close(self) -> None: ...


class Shop(Base):
    """Sell \"things\".

    To everyone.
    """

    def order(self, lines: list[Line], due: date, by: datetime | None = None) -> Order:
        """Order some products.

        They are sent.

        Raises:
            OperationError: 404: There is no such product.
            OperationError(409): All are sold.

        >>> order([{"product": "A1", "count": 2}], due="2027-01-02")
        >>> shop.order(lines=[], due="2027-01-02")
        """
        if not lines or (by is not None and by.year < 2027):
            raise OperationError(404, "Nothing.")
        return Order(due, lines)

    async def days(self, first: date, context: CallContext, count: int = 2) -> AsyncIterator[date]:
        """Tell the days of delivery.

        >>> days("2027-01-02")
        ['2027-01-02', '2027-01-03']
        """
        for day in range(count):
            yield first.replace(day=first.day + day)

    async def open_hours(self) -> AsyncIterator[int]:
        hour = 0
        while True:
            yield hour
            hour += 1

    @staticmethod
    def name() -> str:
        return "The shop"

    def _private(self, anything: complex) -> None: ...


async def test_type_hints_of_a_class_become_a_protocol(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    paths = await write_class_project(folder, Shop, NEW)
    assert all(path.is_file() for path in paths)
    check = await check_project(folder)
    assert check.passed, check
    assert check.coverage is not None
    # Every outcome, that of 409 too, of which there is no example.
    assert check.coverage.missed == ()
    project, manifest = load_project(folder), json.loads((folder / "manifest.json").read_text())
    assert project.card.summary == 'Sell "things".'
    assert list(manifest["operations"]) == ["close", "order", "days", "open_hours", "name"]
    order = manifest["operations"]["order"]
    assert order["errors"].keys() == {"400", "404", "409"}
    assert order["arguments"]["required"] == ["lines", "due"]
    assert order["arguments"]["description"] == "Order some products."
    assert manifest["operations"]["days"]["arguments"]["properties"].keys() == {"first", "count"}
    document = (folder / "document.md").read_text()
    assert "They are sent." in document and "This is not about" not in document and ">>>" not in document
    vector = json.loads((folder / "vectors" / "order-provider.json").read_text())
    values = [step["event"]["result"].get("value") for step in vector["steps"] if "result" in step["event"]]
    assert values[0] == {"due": "2027-01-02", "lines": [{"product": "A1", "count": 2}], "speed": "slow"}

    source = LocalProtocols([folder])
    uri = source.uri("shop")
    host, guest = [Agent(Identity.create(), source, AgentConfig(home=tmp_path / name)) for name in ("host", "guest")]
    async with host, guest:
        for name in manifest["operations"]:
            host.provides(uri)(getattr(Shop(), name))
        async with host.listen("127.0.0.1", 0) as port, guest.peer(f"ws://127.0.0.1:{port}", protocols=[uri]) as peer:
            assert await peer.call("order", lines=[{"product": "A1", "count": 2}], due="2027-01-02") == values[0]
            async with peer.stream("days", first="2027-01-02") as days:
                assert [day async for day in days] == ["2027-01-02", "2027-01-03"]
            # The schema of a time without a zone is a text.
            for by, status in (("2026-01-01T12:00:00", 404), ("no time", 400)):
                with pytest.raises(OperationError) as caught:
                    await peer.call("order", lines=[{"product": "A1", "count": 2}], due="2027-01-02", by=by)
                assert caught.value.status == status


class Complex:
    def turn(self, by: complex) -> str:
        raise NotImplementedError


class Unsaid:
    def find(self, id: str) -> str:
        raise NotImplementedError


class Needing:
    def __init__(self, place: str) -> None:
        raise NotImplementedError

    def find(self) -> str:
        raise NotImplementedError


class Surprising:
    def find(self) -> str:
        raise OperationError(410, "Gone.")


class Broken:
    def find(self) -> str:
        raise ZeroDivisionError("by nothing")


class Lying:
    def find(self, id: str) -> str:
        """
        >>> find("A1")
        7
        """
        return ""


class Odd:
    def find(self, id: str) -> str:
        """
        >>> find(unknown)
        """
        return ""


class Yielding:
    def find(self):  # type: ignore[no-untyped-def]
        yield 1


class Circle(TypedDict):
    inner: list[Circle]


class Circular:
    def find(self) -> Circle:
        raise NotImplementedError


class Listed:
    def find(self, *words: str) -> str:
        raise NotImplementedError


class Silent:
    _hidden = 1


@pytest.mark.parametrize(
    ("described", "phrase"),
    [
        (Complex, "turn .* hint of by, complex"),
        (Unsaid, "find .* no example"),
        (Needing, r"find .* Needing\(\) raised"),
        (Surprising, "find .* raised 410"),
        (Broken, "find .* ZeroDivisionError: by nothing"),
        (Lying, "find .* does not fit its hints"),
        (Odd, "find .* no literals"),
        (Yielding, "find .* not async"),
        (Circular, "Circular, operations.find"),
        (Listed, "find .* needs a name"),
        (Silent, "Silent .* no public method"),
    ],
)
def test_a_class_that_is_no_protocol_leaves_nothing_behind(tmp_path: Path, described: type, phrase: str) -> None:
    with pytest.raises(Malformed, match=phrase) as caught:
        asyncio.run(write_class_project(tmp_path / "shop", described, NEW))
    assert caught.value.code == "agent.function"
    assert list(tmp_path.iterdir()) == []


def test_files_of_the_author_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(Conflict):
        asyncio.run(write_class_project(tmp_path, Shop, NEW))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("place", ["greeter", "nowhere_at_all:Greeter", "json:Nothing", "json:dumps", ":A"])
def test_a_place_without_a_class_is_named(place: str) -> None:
    with pytest.raises(Malformed, match=re.escape(place)) as caught:
        load_class(place)
    assert caught.value.code == "agent.function"


def test_a_class_has_no_kind(tmp_path: Path) -> None:
    line = ["new", "shop", "--topic", "a/b", "--kind", "stream", "--from", "json:JSONDecoder", "--json"]
    done = started(tmp_path, "-c", COMMAND, *line)
    assert json.loads(done.stdout)["error"]["code"] == "system.usage"
    assert not (tmp_path / "shop").exists()
