"""The memory of accepted signatures: across restarts, kills, power failures and floods."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from treaty_agent.authentication.nonces import FUTURE, LIFETIME, NonceMemory
from treaty_consensus.errors import Unauthorized, Unavailable

BOOT = "11111111-2222-3333-4444-555555555555"
ALICE = "did:wba:alice.example"
NOW = 1_790_000_000


class Machine:
    """Opens the memory, one process after the other, at a time that the test sets."""

    def __init__(self, path: Path) -> None:
        self.path, self.now, self.boot = path, NOW - 2 * LIFETIME, BOOT
        self.memory: NonceMemory | None = None
        self.start()
        self.now = NOW

    def start(self, capacity: int = 1000) -> NonceMemory:
        if self.memory:
            self.memory.close()
        self.memory = NonceMemory(self.path, clock=lambda: self.now, capacity=capacity, boot=self.boot)
        return self.memory


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "home" / "nonces")
    yield machine
    if machine.memory:
        machine.memory.close()


def refused(accept: Callable[[], None]) -> str:
    with pytest.raises(Unauthorized) as refusal:
        accept()
    return refusal.value.code


def test_once_also_after_a_restart(machine: Machine) -> None:
    memory = machine.start()
    memory.accept(ALICE, "a", NOW)
    memory.accept(ALICE, "b", NOW)
    memory.accept(f"{ALICE}0", "a", NOW)
    for again in (memory, machine.start(), machine.start()):
        assert refused(lambda again=again: again.accept(ALICE, "a", NOW)) == "authentication.replayed"  # type: ignore[misc]
    machine.start().accept(ALICE, "c", NOW)


def test_a_did_and_a_nonce_are_told_apart(machine: Machine) -> None:
    memory = machine.start()
    memory.accept("did:wba:a.example:k", "1x", NOW)
    memory.accept("did:wba:a.example:k1", "x", NOW)


def test_what_can_be_used_no_more_is_forgotten_on_disk_too(machine: Machine) -> None:
    memory = machine.start()
    for number in range(50):
        memory.accept(ALICE, str(number), NOW)
    machine.now += LIFETIME + 1
    memory = machine.start()
    memory.accept(ALICE, "0", machine.now)
    assert len(machine.path.read_text().splitlines()) == 2


@pytest.mark.threat(100)
def test_a_clock_that_is_set_back_brings_nothing_back(machine: Machine) -> None:
    memory = machine.start()
    memory.accept(ALICE, "a", NOW)
    machine.now += 2 * LIFETIME
    memory.accept(ALICE, "b", machine.now)
    machine.now = NOW
    assert refused(lambda: memory.accept(ALICE, "a", NOW)) == "authentication.time"
    assert refused(lambda: machine.start().accept(ALICE, "a", NOW)) in ("authentication.time", "authentication.replayed")


def test_the_file_does_not_grow_without_end(machine: Machine) -> None:
    memory = machine.start(capacity=100)
    for number in range(5000):
        memory.accept(ALICE, str(number), NOW + number // 100)
    assert len(machine.path.read_text().splitlines()) < 1200


def test_a_flood_shortens_the_memory_and_replays_nothing(machine: Machine) -> None:
    memory = machine.start(capacity=10)
    for number in range(15):
        memory.accept(ALICE, str(number), NOW - 20 + number)
    for again in (memory, machine.start(capacity=10)):
        for number in range(15):
            code = refused(lambda again=again, number=number: again.accept(ALICE, str(number), NOW - 20 + number))  # type: ignore[misc]
            assert code == ("authentication.time" if number < 5 else "authentication.replayed")
        assert refused(lambda again=again: again.accept(ALICE, "new", NOW - 16)) == "authentication.time"  # type: ignore[misc]


def test_a_line_that_was_cut_off_was_not_accepted(machine: Machine) -> None:
    machine.start().accept(ALICE, "a", NOW)
    whole = machine.path.read_bytes()
    machine.start().accept(ALICE, "b", NOW)
    last = machine.path.read_bytes()[len(whole) :]
    for length in (1, 11, len(last) - 1):
        machine.path.write_bytes(whole + last[:length])
        memory = machine.start()
        assert refused(lambda memory=memory: memory.accept(ALICE, "a", NOW)) == "authentication.replayed"  # type: ignore[misc]
        memory.accept(ALICE, "b", NOW)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"\n",
        lambda data: data.replace(b"treaty", b"threat"),
        lambda data: data.replace(BOOT.encode(), b"66666666-2222-3333-4444-555555555555"),
        lambda data: data.replace(BOOT.encode(), b"-"),
        lambda data: data[:-10] + b"\n",
        lambda data: data + b"0 x\n",
        lambda data: data + b"007 " + b"0" * 64 + b"\n",
        lambda data: data + b"\xff\n",
    ],
)
def test_after_damage_everything_is_refused_for_a_minute(machine: Machine, damage: Callable[[bytes], bytes]) -> None:
    machine.start().accept(ALICE, "a", NOW + 30)
    machine.path.write_bytes(damage(machine.path.read_bytes()))
    machine.start()
    memory = machine.start()  # what it does not know is written down, too
    for created in (NOW, NOW + 30, NOW + FUTURE):
        assert refused(lambda created=created: memory.accept(ALICE, "a", created)) == "authentication.time"  # type: ignore[misc]
    machine.now += FUTURE + 1
    memory.accept(ALICE, "b", machine.now)
    assert refused(lambda: machine.start().accept(ALICE, "b", machine.now)) == "authentication.replayed"


def test_a_new_file_refuses_what_was_signed_before_it(tmp_path: Path) -> None:
    memory = NonceMemory(tmp_path / "nonces", clock=lambda: NOW, boot=BOOT)
    assert refused(lambda: memory.accept(ALICE, "a", NOW - 1)) == "authentication.time"
    memory.accept(ALICE, "a", NOW)
    memory.close()


def test_a_system_without_boot_id_waits_at_every_start(machine: Machine) -> None:
    machine.boot = "-"
    machine.start()
    assert refused(lambda: machine.start().accept(ALICE, "a", NOW + FUTURE)) == "authentication.time"


def test_a_second_process_does_not_open_it(machine: Machine) -> None:
    script = (
        "import sys, pathlib; from treaty_agent.authentication.nonces import NonceMemory; NonceMemory(pathlib.Path(sys.argv[1]))"
    )
    other = subprocess.run([sys.executable, "-c", script, machine.path], capture_output=True, text=True, check=False)
    assert "Another process remembers requests" in other.stderr
    machine.start().accept(ALICE, "a", NOW)


def test_a_full_disk_accepts_nothing_and_spoils_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = machine.start()
    memory.accept(ALICE, "a", NOW)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
    with pytest.raises(Unavailable, match="cannot be remembered"):
        memory.accept(ALICE, "b", NOW)
    monkeypatch.undo()
    memory.accept(ALICE, "b", NOW)
    again = machine.start()
    for nonce in ("a", "b"):
        assert refused(lambda nonce=nonce: again.accept(ALICE, nonce, NOW)) == "authentication.replayed"  # type: ignore[misc]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be remembered"):
        NonceMemory(tmp_path / "file" / "nonces")


def test_a_closed_memory_accepts_nothing(machine: Machine) -> None:
    memory = machine.start()
    memory.close()
    memory.close()
    with pytest.raises(Unavailable):
        memory.accept(ALICE, "a", NOW)
