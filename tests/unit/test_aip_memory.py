"""ContextMemory on TinyDB."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from treaty_aip import AgentMessage, ContentItem, ContextMemory, ToolRequest, ToolResponse
from treaty_aip.memory import MAX_OPEN


def test_003_08_and_41_to_44_a_task_has_a_database_of_json(tmp_path: Path) -> None:
    memory = ContextMemory("a", str(tmp_path))
    sent: list[AgentMessage | ToolRequest | ToolResponse] = [
        AgentMessage("a", "b", "s", content=[ContentItem.write_image(b"\x89PNG"), ContentItem.write_text("hi")]),
        ToolRequest("a", "t", arguments={"x": "1"}),
        ToolResponse("t", "a", is_error=True, error_message="no"),
    ]
    assert memory.write("task_001", sent[0]) is False
    assert memory.clear("task_001") is False
    assert memory.create("task_001") is True
    assert memory.create("task_001") is False
    assert [memory.write("task_001", each) for each in sent] == [True, True, True]
    assert memory.read("task_001") == sent
    (file,) = Path(memory.save_dir).iterdir()
    assert Path(memory.save_dir) == tmp_path / "a"
    assert len(json.loads(file.read_text())["_default"]) == 3
    assert memory.clear("task_001") is True
    assert memory.read("task_001") == []
    assert list(memory.dbs) == ["task_001"]


def test_003_08_a_memory_that_is_opened_again_has_its_tasks(tmp_path: Path) -> None:
    first = ContextMemory("a", str(tmp_path))
    first.create("t")
    first.write("t", ToolRequest("a"))
    again = ContextMemory("a", str(tmp_path))
    assert again.create("t") is False
    assert again.write("t", ToolRequest("b"))
    assert [each.sender_id for each in again.read("t")] == ["a", "b"]


@pytest.mark.parametrize("name", ["../out", "/etc/x", "", ".", "..", "a/b", "x" * 300, "a\0b", "任务"])
def test_an_id_of_a_peer_names_no_file_outside(tmp_path: Path, name: str) -> None:
    memory = ContextMemory(name, str(tmp_path / "root"))
    assert memory.create(name)
    assert memory.write(name, ToolRequest(name))
    assert [each.sender_id for each in memory.read(name)] == [name]
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert len(list((tmp_path / "root").rglob("*.json"))) == 1


def test_a_damaged_file_is_false_not_an_error(tmp_path: Path) -> None:
    memory = ContextMemory("a", str(tmp_path))
    memory.create("t")
    (file,) = Path(memory.save_dir).iterdir()
    file.write_text("{")
    assert memory.write("t", ToolRequest("a")) is False


def test_a_memory_of_many_tasks_keeps_few_files_open(tmp_path: Path) -> None:
    memory = ContextMemory("a", str(tmp_path))
    names = [f"t{number}" for number in range(MAX_OPEN + 10)]
    before = len([*Path("/proc/self/fd").iterdir()])
    assert all(memory.create(name) and memory.write(name, ToolRequest(name)) for name in names)
    assert len([*Path("/proc/self/fd").iterdir()]) - before <= MAX_OPEN
    assert [[each.sender_id for each in memory.read(name)] for name in names] == [[name] for name in names]
