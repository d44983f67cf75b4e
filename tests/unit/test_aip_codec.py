"""The codec of AIP against bytes worked out by hand, against protoc, and against the generated stubs."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from treaty_aip.handler.codec import MAX_DEPTH, MAX_FIELDS, MAX_ITEMS, decode, encode, lengthy
from treaty_aip.handler.fields import ENUMS, MESSAGES, METHODS, Field
from treaty_aip.handler.frames import Frame, pack, read, unpack, write
from treaty_aip.stubs import aip_pb2

ROOT = Path(__file__).parents[2]
PYTHON = "protocols/aip/python"
STUBS = ROOT / PYTHON / "treaty_aip" / "stubs"

# Each is written down from the field table: tag = number * 8 + wire type (0 number, 2 length), then the content.
BY_HAND: list[tuple[str, dict[str, Any], str]] = [
    ("HeartbeatRequest", {"sender_id": "a1"}, "0a 02 6131"),
    ("HeartbeatResponse", {"success": True, "message": "ok"}, "08 01 12 02 6f6b"),
    ("ContentItem", {"text": ""}, "0a 00"),
    ("ContentItem", {"image": "iVA="}, "12 02 8950"),
    ("ContentItem", {"audio": "UklG"}, "1a 03 524946"),
    ("ContentItem", {"embedded": "AA=="}, "22 01 00"),
    ("TaskInfo", {"task_id": "t", "parent_task_ids": ["p", "q"], "task_status": "FINISH"}, "0a 01 74 12 01 70 12 01 71 20 04"),
    (
        "AgentMessage",
        {
            "sender_id": "a",
            "receiver_id": "b",
            "session_id": "s",
            "session_status": "STOP_QUEST",
            "task_info": {"task_id": "t"},
            "message_id": "m",
            "reply_to_message_id": "r",
            "content": [{"text": "hi"}],
        },
        "0a 01 61 12 01 62 1a 01 73 20 03 2a 03 0a0174 32 01 6d 3a 01 72 42 04 0a026869",
    ),
    (
        "AgentInfo",
        {
            "agent_id": "a",
            "address": "h:1",
            "domain": "d",
            "input_mode": ["TEXT", "IMAGE"],
            "output_mode": ["AUDIO"],
            "skills": [{"skill_id": "s", "capability": "c"}],
            "version": "1",
        },
        "0a 01 61 12 03 683a31 22 01 64 2a 02 0001 32 01 02 42 06 0a0173 120163 4a 01 31",
    ),
    ("ToolInfo", {"tool_id": "t", "arguments": {"b": "2", "a": ""}}, "0a 01 74 42 05 0a0161 1200 42 06 0a0162 120132"),
    ("Peer", {"tool_info": {"tool_id": "t"}}, "12 03 0a0174"),
    ("Peer", {"agent_info": {}}, "0a 00"),
    ("ToolRequest", {"tool_name": "add", "arguments": {"x": "1"}}, "22 03 616464 2a 06 0a0178 120131"),
    ("ToolResponse", {"is_error": True, "error_message": "no"}, "20 01 2a 02 6e6f"),
    ("NodeUpdate", {"update_type": "REMOVED", "node_id": "n"}, "08 02 12 01 6e"),
    ("UpdateSubscriptionRequest", {"subscriber_id": "a", "node_ids": ["b", ""]}, "0a 01 61 12 01 62 12 00"),
    ("RegisterAgentResponse", {"success": True, "peers": [{"agent_info": {"agent_id": "a"}}]}, "08 01 12 05 0a03 0a0161"),
]


each_by_hand = pytest.mark.parametrize(
    ("message", "value", "written"), BY_HAND, ids=[f"{name}-{index}" for index, (name, *_) in enumerate(BY_HAND)]
)


def protoc(*arguments: str, stdin: bytes = b"") -> bytes:
    command = [sys.executable, "-m", "grpc_tools.protoc", *arguments]
    return subprocess.run(command, input=stdin, check=True, capture_output=True, cwd=ROOT).stdout


def essential(value: Any) -> Any:
    """A message without its defaults, as it was written."""
    if isinstance(value, dict):
        members = {name: essential(item) for name, item in value.items()}
        return {name: item for name, item in members.items() if item not in ("", [], {}, False, *FIRST)}
    return [essential(item) if isinstance(item, dict) else item for item in value] if isinstance(value, list) else value


FIRST = tuple(names[0] for names in ENUMS.values())


@each_by_hand
def test_bytes_worked_out_by_hand_are_written_and_read(message: str, value: dict[str, Any], written: str) -> None:
    data = bytes.fromhex(written)
    assert encode(message, value) == data
    text = decode(message, data)
    assert encode(message, text) == data
    assert essential({name: text[name] for name in value}) == essential(value)
    stub = getattr(aip_pb2, message).FromString(data)
    assert stub.SerializeToString(deterministic=True) == data
    assert json_format.MessageToDict(stub, preserving_proto_field_name=True) == essential(value) | kept(value)


def kept(value: dict[str, Any]) -> dict[str, Any]:
    """The parts that the library shows although they are empty: members of a oneof, and items of lists and maps."""
    names = ("text", "image", "audio", "embedded", "agent_info", "tool_info", "input_mode", "node_ids", "arguments", "peers")
    return {name: value[name] for name in names if name in value}


@pytest.mark.sample(1)
@each_by_hand
def test_protoc_reads_them(message: str, value: dict[str, Any], written: str) -> None:
    data = bytes.fromhex(written)
    raw = protoc("--decode_raw", stdin=data).decode()
    fields = {each.name: number for number, each in MESSAGES[message].items()}
    assert {int(line.split(":")[0].split(" ")[0]) for line in raw.splitlines() if line[0].isdigit()} == {
        fields[name] for name in value
    }
    named = protoc("-I", PYTHON, f"--decode=grpc_service.{message}", "treaty_aip/stubs/aip.proto", stdin=data).decode()
    back = protoc("-I", PYTHON, f"--encode=grpc_service.{message}", "treaty_aip/stubs/aip.proto", stdin=named.encode())
    assert decode(message, back) == decode(message, data)


def test_the_stubs_are_those_that_the_proto_generates(tmp_path: Path) -> None:
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    protoc("-I", PYTHON, *out, "treaty_aip/stubs/aip.proto")
    stubs = {path.name: path.read_text() for path in (tmp_path / "treaty_aip" / "stubs").iterdir()}
    assert sorted(stubs) == ["aip_pb2.py", "aip_pb2.pyi", "aip_pb2_grpc.py"]
    assert [name for name, text in stubs.items() if (STUBS / name).read_text() != text] == []


def test_the_proto_agrees_with_the_table() -> None:
    types = dict(aip_pb2.DESCRIPTOR.message_types_by_name.items())
    types["AgentSkill"] = types["AgentInfo"].nested_types_by_name["AgentSkill"]
    own = {"Frame", "MapEntry"}
    assert types.keys() == MESSAGES.keys() - own
    for name in MESSAGES.keys() - own:
        assert {each.number: each.name for each in types[name].fields} == {n: each.name for n, each in MESSAGES[name].items()}
    services = aip_pb2.DESCRIPTOR.services_by_name
    methods = {m.name: (s.name, m.input_type.name, m.output_type.name) for s in services.values() for m in s.methods}
    assert methods == METHODS
    assert tuple(aip_pb2.Mode.keys()) == ENUMS["Mode"]
    assert tuple(aip_pb2.AgentMessage.SessionStatus.keys()) == ENUMS["SessionStatus"]


def values(field: Field) -> st.SearchStrategy[Any]:
    if field.kind == "map":
        return st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
    one: st.SearchStrategy[Any]
    if field.kind in MESSAGES:
        one = objects(field.kind)
    elif field.kind in ENUMS:
        one = st.sampled_from(ENUMS[field.kind])
    elif field.kind == "bytes":
        one = st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode())
    else:
        one = st.booleans() if field.kind == "bool" else st.text(max_size=9)
    return st.lists(one, max_size=3) if field.repeated else one


@st.composite
def objects(draw: Any, message: str) -> dict[str, Any]:
    members_drawn = {
        each.name: draw(values(each)) for each in MESSAGES[message].values() if not each.oneof and draw(st.booleans())
    }
    members = [each for each in MESSAGES[message].values() if each.oneof]
    if members and draw(st.booleans()):
        member = draw(st.sampled_from(members))
        members_drawn[member.name] = draw(values(member))
    return members_drawn


@given(st.data())
def test_the_codec_agrees_with_the_library(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(sorted(MESSAGES.keys() - {"Frame", "MapEntry", "AgentSkill"})))
    value = data.draw(objects(message))
    written = encode(message, value)
    kind = getattr(aip_pb2, message)
    parsed = json_format.ParseDict(value, kind())
    assert kind.FromString(written) == parsed
    assert decode(message, parsed.SerializeToString()) == decode(message, written)


@given(st.sampled_from(sorted(MESSAGES)), st.binary(max_size=200))
def test_no_bytes_raise_anything_but_valueerror(message: str, data: bytes) -> None:
    try:
        value = decode(message, data)
    except ValueError:
        return
    assert decode(message, encode(message, value)) == value


def test_a_later_version_is_read_with_its_unknown_fields() -> None:
    assert (
        decode("HeartbeatRequest", bytes.fromhex("0a0161 9001 05 9a01 00 a501 00000000 a101 0000000000000000"))["sender_id"]
        == "a"
    )
    assert decode("AgentInfo", bytes.fromhex("2a 02 6301"))["input_mode"] == [99, "IMAGE"]
    assert decode("AgentInfo", bytes.fromhex("28 01 28 00"))["input_mode"] == ["IMAGE", "TEXT"]
    assert decode("TaskInfo", bytes.fromhex("20 ffffffffffffffffff01"))["task_status"] == -1
    assert decode("ContentItem", bytes.fromhex("0a0161 120162")) == {"image": "Yg=="}
    group = "9b01 0a0162 a301 1005 a401 9c01"  # of a field 19, with another group in it
    assert decode("HeartbeatRequest", bytes.fromhex(f"{group} 0a0161 {group}"))["sender_id"] == "a"
    parts = decode("AgentMessage", bytes.fromhex("2a 03 0a0174 2a 02 2004"))["task_info"]
    assert (parts["task_id"], parts["task_status"]) == ("t", "FINISH")


@pytest.mark.parametrize(
    "data", ["0a 05 61", "0a", "00 01", "0b", "0c", "0b 14", "0f", "0a 01 ff", "08 ffffffffffffffffffffff01", "0a ffffffff0f"]
)
def test_broken_bytes_are_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode("HeartbeatRequest", bytes.fromhex(data))


def test_003_73_the_items_of_a_message_are_bounded() -> None:
    with pytest.raises(ValueError, match="more than"):
        decode("AgentMessage", bytes.fromhex("42 00") * (MAX_ITEMS + 1))
    with pytest.raises(ValueError, match="more than"):
        decode("AgentInfo", b"\x2a\x82\x20" + bytes(MAX_ITEMS + 2))
    nested = bytes.fromhex("0a 04 0a02 4200") * (MAX_ITEMS // 2 + 1)
    with pytest.raises(ValueError, match="more than"):
        decode("GetNodesResponse", nested)


@pytest.mark.threat(234)
@pytest.mark.parametrize(
    "part",
    ["2a 02 0a00", "78 00", "0a 00", "42 02 7800", "7b 7c", "2a 04 0a02 7800"],
    ids=["parts of a message", "unknown fields", "one field again", "fields of items", "groups", "fields of parts"],
)
def test_the_fields_of_a_message_are_bounded(part: str) -> None:
    piece = bytes.fromhex(part)
    with pytest.raises(ValueError, match="more than"):
        decode("AgentMessage", piece * (MAX_FIELDS + 1))
    with pytest.raises(ValueError, match="more than"):
        read(piece * (MAX_FIELDS + 1))


@pytest.mark.threat(234)
def test_groups_within_groups_are_bounded() -> None:
    deep = bytes.fromhex("7b") * (MAX_DEPTH + 1) + bytes.fromhex("7c") * (MAX_DEPTH + 1)
    with pytest.raises(ValueError, match="within each other"):
        decode("AgentMessage", deep)
    assert decode("AgentMessage", deep[1:-1])["sender_id"] == ""


@pytest.mark.threat(234)
def test_a_message_in_many_parts_is_read_in_one_go() -> None:
    part = lengthy(1, b"x" * 300)
    assert decode("AgentMessage", lengthy(5, part) * 8_000)["task_info"]["task_id"] == "x" * 300


def test_a_value_that_is_no_message_is_refused() -> None:
    for message, value in [
        ("HeartbeatRequest", {"other": "a"}),
        ("HeartbeatRequest", {"sender_id": 1}),
        ("HeartbeatRequest", {"sender_id": "\ud800"}),
        ("ContentItem", {"text": "a", "image": ""}),
        ("ContentItem", {"image": "?"}),
        ("AgentInfo", {"input_mode": ["SMELL"]}),
        ("AgentInfo", {"input_mode": "TEXT"}),
        ("ToolInfo", {"arguments": []}),
        ("HeartbeatResponse", {"success": 1}),
    ]:
        with pytest.raises(ValueError, match=r"."):
            encode(message, json.loads(json.dumps(value)))


def test_a_frame_carries_a_call() -> None:
    frame = Frame("REQUEST", "Heartbeat", "c1", {"sender_id": "a"}, address="gw:1")
    data = write(frame)
    assert data == bytes.fromhex("12 09") + b"Heartbeat" + bytes.fromhex("1a 02 6331 3a 04 67773a31 22 03 0a0161")
    assert read(data) == frame
    assert pack(unpack(data)) == data
    broken = pack(Frame("REQUEST", "Heartbeat", "c1", b"\x0a\x05"))
    assert read(broken).kind == "BROKEN"
    for bad in (b"", b"\x12\x01x", write(frame)[:5]):
        with pytest.raises(ValueError, match=r"."):
            read(bad)
