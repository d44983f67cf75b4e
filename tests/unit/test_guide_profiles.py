"""The guide of the two profiles: its examples run."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from meetings import LAPTOP, URI_2, buyer, shop

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "profiles.md").read_text(encoding="utf-8")


async def test_the_examples_do_what_the_guide_says(tmp_path: Path) -> None:
    register, connect = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
    for someone in (seller, customer):
        exec(register, {"agent": someone.agent, "URI": URI_2})
    async with seller.agent, seller.agent.listen("127.0.0.1", 0) as port, customer.agent:
        names: dict[str, Any] = {"agent": customer.agent, "url": f"ws://127.0.0.1:{port}", "shop": seller.agent.did}
        body = textwrap.indent(f"{connect}\n    return info, session.parameters", "    ")
        exec(f"async def buy():\n{body}", names)
        assert await names["buy"]() == (LAPTOP, {"chunkSize": 2048})
