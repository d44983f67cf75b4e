"""The guide to errors is executed: its Python with a shop that answers, refuses, fails and is gone."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, TOPIC, buyer, shop

from treaty_agent import OperationError, Unavailable
from treaty_agent.testing import PeerDouble, Simulation, run

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "errors.md").read_text(encoding="utf-8")


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("errors_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/guides/errors.md", "exec"), module.__dict__)
    return module


async def test_the_outcomes_of_a_call(tmp_path: Path, guide: Any, caplog: pytest.LogCaptureFixture) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path).agent
    async with customer, seller.agent:
        async with seller.agent.listen("127.0.0.1", 0) as port:
            peer = customer.peer(f"ws://127.0.0.1:{port}", topic=TOPIC)
            assert await guide.price_of(peer, "P12345") == LAPTOP["price"]
            assert await guide.price_of(peer, "P99999") is None
        hasty = customer.peer(f"ws://127.0.0.1:{port}", topic=TOPIC, timeout=1)
        assert await guide.price_of(hasty, "P12345") is None
    assert "Not done, try later" in caplog.text


class _Hotel:
    """A handle whose calls fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def call(self, operation: str, **arguments: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(("status", "message"), [(409, "The hotel has no such room left."), (404, "Theirs.")])
async def test_an_error_is_passed_on_deliberately(guide: Any, status: int, message: str) -> None:
    with pytest.raises(OperationError) as failure:
        await guide.book(_Hotel(OperationError(status, "Theirs.")), "12")
    assert (failure.value.status, failure.value.message) == (status, message)


def test_the_table_of_functions_is_true() -> None:
    async def main() -> None:
        async with Simulation([ROOT / "examples" / "greeting"]) as simulation:
            host = PeerDouble(simulation.agent("host.example"), simulation.uri("greeting"), {"greet": ""})
            guest = simulation.agent("guest.example")
            rows = {403: OperationError(403), 503: Unavailable("a.b", "Away."), 504: TimeoutError(), 500: KeyError("x")}
            async with simulation.serving(host.agent), guest.connect("wss://host.example", topic="social/greeting") as session:
                for status, host.answers["greet"] in rows.items():
                    with pytest.raises(OperationError) as failure:
                        await session.call("greet", name="Ada")
                    assert failure.value.status == status

    run(main())
