"""Checkpoints: their one spelling, whose they are, and how old."""

from __future__ import annotations

import pytest

from treaty_consensus.errors import Malformed, TreatyError, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint, SignedCheckpoint, open_checkpoint
from treaty_consensus.log.merkle import EMPTY_ROOT, MAX_SIZE
from treaty_consensus.log.note import KeyType, SignerKey, add_signatures, sign

LOG = SignerKey("log.example", KeyType.ED25519, bytes(range(32)))
CLOCK = SignerKey("log.example/clock", KeyType.COSIGNATURE, bytes(range(32, 64)))
WITNESS = SignerKey("witness.example", KeyType.COSIGNATURE, b"w" * 32)
ROOT = "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I="
HEAD = Checkpoint.parse(f"log.example\n20852163\n{ROOT}\n")
NOW = 1_800_000_000


def test_the_parts_of_a_checkpoint() -> None:
    assert (HEAD.origin, HEAD.size, HEAD.extensions) == ("log.example", 20852163, ())
    assert HEAD.root.hex().startswith("0ac5186a")
    assert HEAD.format() == f"log.example\n20852163\n{ROOT}\n"
    extended = Checkpoint.parse(f"an origin with spaces\n0\n{ROOT}\nextension 1\n— extension\n")
    assert extended.extensions == ("extension 1", "— extension")
    assert Checkpoint("log.example", MAX_SIZE, EMPTY_ROOT).format().split("\n")[1] == "9223372036854775807"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "\n\n\n",
        "log.example\n1\n",
        f"log.example\n1\n{ROOT}",
        f"log.example\n1\n{ROOT}=",
        f"log.example\n1\n{ROOT}\next",
        f"\n1\n{ROOT}\n",
        f"log.example\n\n{ROOT}\n",
        "log.example\n1\n\n",
        f"log.example\n01\n{ROOT}\n",
        f"log.example\n00\n{ROOT}\n",
        f"log.example\n-1\n{ROOT}\n",
        f"log.example\n+1\n{ROOT}\n",
        f"log.example\n 1\n{ROOT}\n",
        f"log.example\n1 \n{ROOT}\n",
        f"log.example\n1_0\n{ROOT}\n",
        f"log.example\n٣\n{ROOT}\n",
        f"log.example\n0x1\n{ROOT}\n",
        f"log.example\n9223372036854775808\n{ROOT}\n",
        f"log.example\n{'9' * 5000}\n{ROOT}\n",
        f"log.example\n1\n{ROOT[:-1]}\n",
        f"log.example\n1\n{ROOT} \n",
        f"log.example\n1\n{ROOT.replace('I=', 'J=')}\n",
        f"log.example\n1\n{ROOT.replace('/', '_')}\n",
        f"log.example\n1\n{'A' * 40}\n",
        f"log.example\n1\n{'A' * 44}\n",
        f"log.example\n1\n{'A' * 48}\n",
        f"log.example\n1\n{ROOT}\n\n",
        f"log.example\n1\n{ROOT}\next\n\next\n",
        f"log.example\r\n1\r\n{ROOT}\r\n",
        f"log\texample\n1\n{ROOT}\n",
        f"log\ud800\n1\n{ROOT}\n",
    ],
)
def test_other_spellings_are_no_checkpoint(text: str) -> None:
    with pytest.raises(Malformed) as refused:
        Checkpoint.parse(text)
    assert refused.value.code == "log.form"


@pytest.mark.parametrize(
    ("origin", "size", "root", "extensions"),
    [
        ("", 1, EMPTY_ROOT, ()),
        ("a\nb", 1, EMPTY_ROOT, ()),
        ("a", -1, EMPTY_ROOT, ()),
        ("a", MAX_SIZE + 1, EMPTY_ROOT, ()),
        ("a", 1, b"short", ()),
        ("a", 1, EMPTY_ROOT, ("",)),
        ("a", 1, EMPTY_ROOT, ("one\ntwo",)),
        ("a", 1, EMPTY_ROOT, ("\x00",)),
    ],
)
def test_a_checkpoint_that_could_not_be_parsed_is_not_made(
    origin: str, size: int, root: bytes, extensions: tuple[str, ...]
) -> None:
    with pytest.raises(Malformed):
        Checkpoint(origin, size, root, extensions)


def test_open_gives_the_head_and_the_time_of_the_clock() -> None:
    note = sign(HEAD.format(), [LOG, CLOCK], time=NOW)
    assert open_checkpoint(note, LOG.verifier, CLOCK.verifier) == SignedCheckpoint(HEAD, NOW, note)
    assert open_checkpoint(note, LOG.verifier) == SignedCheckpoint(HEAD, None, note)
    renewed = add_signatures(note, [CLOCK], time=NOW + 60)
    assert open_checkpoint(renewed, LOG.verifier, CLOCK.verifier).time == NOW + 60
    witnessed = add_signatures(note, [WITNESS], time=NOW + 1)
    assert open_checkpoint(witnessed, LOG.verifier, CLOCK.verifier) == SignedCheckpoint(HEAD, NOW, witnessed)


def test_without_its_clock_a_checkpoint_has_no_time() -> None:
    note = sign(HEAD.format(), [LOG, WITNESS], time=NOW)
    assert open_checkpoint(note, LOG.verifier, CLOCK.verifier).time is None


def test_a_checkpoint_the_log_did_not_sign_is_refused() -> None:
    for signers in ([CLOCK], [CLOCK, WITNESS]):
        note = sign(HEAD.format(), signers, time=NOW)
        with pytest.raises(Untrusted) as refused:
            open_checkpoint(note, LOG.verifier, CLOCK.verifier)
        assert refused.value.code == "note.signature"


def test_a_checkpoint_of_another_log_is_refused() -> None:
    for origin in ("other.example", "log.example/clock", "LOG.example"):
        note = sign(Checkpoint(origin, 1, EMPTY_ROOT).format(), [LOG])
        with pytest.raises(Untrusted) as refused:
            open_checkpoint(note, LOG.verifier)
        assert refused.value.code == "log.other"


def test_a_signed_text_that_is_no_checkpoint_is_refused() -> None:
    with pytest.raises(Malformed):
        open_checkpoint(sign("log.example\n1\n", [LOG]), LOG.verifier)


def test_keys_in_the_wrong_place_are_refused() -> None:
    note = sign(HEAD.format(), [LOG, CLOCK], time=NOW)
    for log_key, clock_key in [(CLOCK, None), (LOG, LOG), (CLOCK, LOG)]:
        with pytest.raises(Malformed) as refused:
            open_checkpoint(note, log_key.verifier, clock_key.verifier if clock_key else None)
        assert refused.value.code == "note.form"


def test_no_flipped_byte_changes_what_a_checkpoint_says() -> None:
    note = sign(HEAD.format(), [LOG, CLOCK], time=NOW)
    survivors = []
    for place in range(len(note)):
        flipped = note[:place] + bytes([note[place] ^ 1 << place % 8]) + note[place + 1 :]
        try:
            survivors.append((place, open_checkpoint(flipped, LOG.verifier, CLOCK.verifier)))
        except TreatyError:
            continue
    clock_line = note.rindex("— ".encode())
    # The clock's line is another key's once its name or key ID is spoilt; then it is gone, never another time.
    assert all(place > clock_line for place, _ in survivors)
    assert all((opened.checkpoint, opened.time) == (HEAD, None) for _, opened in survivors)
