"""The bench of tools, which is `treaty mcp` as a host starts it: with a real registry, a verified protocol and an agent."""

from __future__ import annotations

import pytest
from bench import tools

from treaty_mcp.tools.tool_server import PROOF


@pytest.mark.deep
@pytest.mark.threat(440)
async def test_a_host_uses_an_operation_of_a_protocol_that_it_never_heard_of() -> None:
    async with tools.scene() as clients:
        listed = [tool.name for tool in (await clients["native"].list_tools()).tools]
        reads = ["search", "resolve", "read", "verify", "topic", "discover", "operations"]
        assert listed == [*reads, "call", "product-info.getProductInfo"], "no tool that votes or publishes"
        plain = await tools.call(clients["plain"], await tools.name_of(clients["plain"]))
        native = await tools.call(clients["native"], await tools.name_of(clients["native"]))
        assert native.structured_content == plain.structured_content
        proof = native.meta[PROOF]
        found = await clients["native"].call_tool("search", {"words": "product"})
        (uri,) = (one["uri"] for one in found.structured_content["protocols"])
        verified = await clients["native"].call_tool("verify", {"uri": uri})
        assert verified.structured_content["hash"] == proof["document"] and proof["leaf"] > 0
        described = (await clients["native"].call_tool("operations", {"uri": uri})).structured_content["operations"]
        assert [one["name"] for one in described] == ["getProductInfo"]
        refused = await clients["native"].call_tool(
            "call", {"agent": proof["agent"], "protocol": uri, "operation": "getProductInfo", "arguments": tools.PRODUCT}
        )
        assert refused.is_error and "network.url" in str(refused.content[0]), "the address is one of this machine"


def test_a_figure_is_the_median_of_the_turns_ratios() -> None:
    figure = tools.judge({"plain": [1.0, 2.0, 4.0], "native": [1.5, 2.0, 12.0]})
    assert (figure.ratio, figure.met, figure.plain, figure.native) == (1.5, True, 2.0, 2.0)
    assert not tools.judge({"plain": [1.0], "native": [2.1]}).met
