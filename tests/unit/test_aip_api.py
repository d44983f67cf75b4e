"""The 58 items of AIP's public API: each has the source's name, parameters and defaults; further ones are by keyword alone."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import treaty_aip as aip

# The numbers are those of docs/specification/conformance.md. A parameter is followed by its default, where it has one.
GATEWAY = [
    (10, "start", ""),
    (11, "stop", ""),
    (12, "get_registered_nodes", ""),
    (13, "get_registered_agents", ""),
    (14, "get_registered_tools", ""),
]
_SAYING = "session_id, receiver_id, content, content_mode=None, session_status=None, task_info=None"
AGENT = [
    (15, "_create_agent_info", ""),
    (16, "start", ""),
    (17, "stop", ""),
    (18, "register_to_gateway", "gateway_address"),
    (19, "update_peers", "domain='default'"),
    (20, "get_nodes", ""),
    (21, "create_task_info", "parent_task_ids=None"),
    (22, "create_content_items", "content, content_mode=None"),
    (
        23,
        "create_agent_message",
        "receiver_id, content, session_id=None, task_info=None, content_mode=None, session_status=START_QUEST, message_id=None, "
        "reply_to_message_id=None",
    ),
    (24, "create_agent_client", "receiver_id, stub=GatewayServiceStub, stream_calling='RouteAgentCalling'"),
    (25, "submit_inquiry", _SAYING),
    (26, "receive_feedback", "session_id, receiver_id"),
    (27, "submit_feedback", _SAYING),
    (28, "receive_inquiry", ""),
    (29, "invoke_session_handlers", "session_id, handlers"),
    (30, "create_tool_request", "receiver_id, session_id=None, tool_name=None, arguments=None"),
    (31, "call_tool", "tool_id, session_id=None, tool_name=None, arguments=None"),
    (32, "close_agent_client", "session_id, receiver_id"),
    (33, "close_tool_client", "tool_id"),
]
_INFO = "description=None, domain=None, version=None, input_mode=None, output_mode=None, arguments=None"
TOOL = [
    (34, "update_tool_info", f"name=None, {_INFO}"),
    (35, "set_process_request_handler", "handler"),
    (36, "start", ""),
    (37, "stop", ""),
    (38, "register_to_gateway", "gateway_address"),
    (39, "creat_function_tool", "function, address, …"),
    (40, "creat_api_tool", "address, api_url, api_method='GET', api_headers=None, api_timeout=30, …"),
]
MEMORY = [
    (41, "__init__", "agent_id, save_root='./.cache'"),
    (42, "create", "task_id"),
    (43, "write", "task_id, message"),
    (44, "clear", "task_id"),
]
METHODS: list[tuple[type, int, str, str]] = [(aip.Gateway, *each) for each in GATEWAY] + [(aip.Agent, *each) for each in AGENT]
METHODS += [(aip.Tool, *each) for each in TOOL] + [(aip.ContextMemory, *each) for each in MEMORY]

ENUMS = [
    (45, aip.Mode, "TEXT IMAGE AUDIO EMBEDDED"),
    (46, aip.SessionStatus, "START_QUEST HOLD_QUEST HOLD_RESPONSE STOP_QUEST STOP_RESPONSE"),
    (47, aip.TaskStatus, "CREATE EXECUTING WAITING BREAK FINISH"),
]
ITEMS = [(50, "text", "hi"), (51, "image", b"\x89PNG"), (52, "audio", b"WAV"), (53, "embedded", b"\0")]
_COMMON = "address name domain input_mode output_mode description"
DATA = [
    (48, aip.AgentSkill, "skill_id capability"),
    (49, aip.TaskInfo, "task_id parent_task_ids task_status"),
    (54, aip.Peer, "agent_info tool_info"),
    (55, aip.AgentInfo, f"agent_id {_COMMON} skills version"),
    (56, aip.RegisterAgentResponse, "success peers"),
    (57, aip.ToolInfo, f"tool_id {_COMMON} arguments version"),
    (58, aip.RegisterToolResponse, "success"),
    (59, aip.DeregisterNodeRequest, "node_id"),
    (60, aip.DeregisterNodeResponse, "success"),
    (61, aip.GetNodesRequest, "agent_id domain"),
    (62, aip.GetNodesResponse, "peers"),
    (63, aip.AgentMessage, "sender_id receiver_id session_id session_status task_info message_id reply_to_message_id content"),
    (64, aip.ToolRequest, "sender_id receiver_id session_id tool_name arguments"),
    (65, aip.ToolResponse, "sender_id receiver_id session_id is_error error_message content"),
    (66, aip.HeartbeatRequest, "sender_id"),
    (67, aip.HeartbeatResponse, "success message"),
]
FILLED: dict[str, Any] = {
    "task_info": aip.TaskInfo("t", ["p"], aip.TaskStatus.WAITING),
    "content": [aip.ContentItem.write_audio(b"a"), aip.ContentItem.write_text("")],
    "session_status": aip.SessionStatus.STOP_QUEST,
    "task_status": aip.TaskStatus.BREAK,
    "parent_task_ids": ["p"],
    "input_mode": [aip.Mode.IMAGE],
    "output_mode": [aip.Mode.AUDIO, aip.Mode.TEXT],
    "skills": [aip.AgentSkill("s", "c")],
    "arguments": {"a": "b"},
    "success": True,
    "is_error": True,
    "peers": [aip.Peer(aip.AgentInfo("a")), aip.Peer(tool_info=aip.ToolInfo("t"))],
    "agent_info": aip.AgentInfo("a", input_mode=[aip.Mode.AUDIO]),
}


def parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters by position, with their defaults."""
    shown_parameters = []
    for name, each in inspect.signature(function).parameters.items():
        if name == "self" or each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD):
            continue
        default = each.default
        text = getattr(default, "name", None) or getattr(default, "__name__", None) or repr(default)
        shown_parameters.append(name if default is each.empty else f"{name}={text}")
    return shown_parameters


def test_the_api_has_58_items() -> None:
    numbers = [number for _, number, _, _ in METHODS] + [number for number, *_ in [*ENUMS, *ITEMS, *DATA]]
    assert sorted(numbers) == list(range(10, 68))


@pytest.mark.parametrize(
    ("owner", "number", "name", "expected"), METHODS, ids=lambda value: str(getattr(value, "__name__", value))
)
def test_003_10_to_44_signatures_are_those_of_the_source(owner: type, number: int, name: str, expected: str) -> None:
    actual, source_parameters = parameters(getattr(owner, name)), [each for each in expected.split(", ") if each]
    if source_parameters[-1:] == ["…"]:
        # "The other parameters are those of Tool."
        source_parameters = source_parameters[:-1]
        assert actual[len(source_parameters) :] == [
            "tool_id=None",
            "name=None",
            "domain='default'",
            "description=None",
            "version='1.0.0'",
            "input_mode=(<Mode.TEXT: 0>,)",
            "output_mode=(<Mode.TEXT: 0>,)",
            "arguments=None",
        ]
        actual = actual[: len(source_parameters)]
    assert actual == source_parameters


def test_003_10_11_a_gateway_has_a_default_address_and_id() -> None:
    assert parameters(aip.Gateway) == ["address", "gateway_id=None"]
    first, second = aip.Gateway("localhost:0"), aip.Gateway("localhost:0")
    assert first.gateway_id != second.gateway_id
    assert aip.Gateway("localhost:0", "g").gateway_id == "g"
    asyncio.run(first.stop())


def test_003_39_40_both_spellings_of_the_constructors_are_one() -> None:
    for name in ("function_tool", "api_tool"):
        old, new = getattr(aip.Tool, f"creat_{name}"), getattr(aip.Tool, f"create_{name}")
        assert old.__func__ is new.__func__


@pytest.mark.parametrize(("number", "kind", "names"), ENUMS)
def test_003_45_to_47_has_the_sources_values(number: int, kind: Any, names: str) -> None:
    assert [(each.name, each.value) for each in kind] == [(name, index) for index, name in enumerate(names.split())]


@pytest.mark.parametrize(("number", "name", "content"), ITEMS)
def test_003_50_to_53_writes_one_content(number: int, name: str, content: Any) -> None:
    item = getattr(aip.ContentItem, f"write_{name}")(content)
    contents = {each: getattr(item, f"_{each}") for each in ("text", "image", "audio", "embedded")}
    assert contents == {**dict.fromkeys(contents), name: content}
    assert aip.ContentItem.from_value(item.to_value()) == item


@pytest.mark.parametrize(("number", "kind", "names"), DATA, ids=lambda value: str(getattr(value, "__name__", value)))
def test_003_48_49_and_54_to_67_has_all_fields_of_the_source(number: int, kind: Any, names: str) -> None:
    fields = names.split()
    assert list(inspect.signature(kind).parameters) == fields
    assert all(each.default is not each.empty for each in inspect.signature(kind).parameters.values())
    chosen = fields[:1] if kind is aip.Peer else fields
    filled = kind(**{name: FILLED.get(name, f"a {name}") for name in chosen})
    again = kind.from_value(filled.to_value())
    assert again == filled
    assert {name: getattr(again, name) for name in chosen} == {name: getattr(filled, name) for name in chosen}
    assert again != kind()


def test_003_63_and_65_content_is_added_in_order() -> None:
    for message in (aip.AgentMessage(), aip.ToolResponse()):
        message.add_content(aip.ContentItem.write_text("1"))
        message.add_content(aip.ContentItem.write_image(b"2"))
        assert [each.to_value() for each in message.content] == [{"text": "1"}, {"image": "Mg=="}]
    assert aip.AgentMessage().content == []


def test_003_70_each_mode_is_restored_from_its_own_field() -> None:
    for kind in (aip.AgentInfo, aip.ToolInfo):
        info = kind(input_mode=[aip.Mode.TEXT], output_mode=[aip.Mode.AUDIO])
        assert kind.from_value(info.to_value()).output_mode == [aip.Mode.AUDIO]


def test_003_71_a_peer_keeps_its_description() -> None:
    for peer in (aip.Peer(agent_info=aip.AgentInfo("a", "h:1")), aip.Peer(tool_info=aip.ToolInfo("t", "h:1"))):
        assert aip.Peer.from_value(peer.to_value()) == peer
    peer = aip.Peer()
    peer.agent_info = aip.AgentInfo("a")
    peer.tool_info = aip.ToolInfo("t")
    assert peer.agent_info is None
    assert peer.to_value()["tool_info"]["tool_id"] == "t"
    with pytest.raises(ValueError, match="or a tool"):
        aip.Peer(aip.AgentInfo(), aip.ToolInfo())
