"""C2SP signed notes: what is signed, what is verified, and every way a note is refused."""

from __future__ import annotations

import base64

import pytest

from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Untrusted
from treaty_consensus.log.note import (
    MAX_NOTE_BYTES,
    MAX_TIME,
    KeyType,
    Signature,
    SignerKey,
    VerifierKey,
    add_signatures,
    open_note,
    sign,
)

LOG = SignerKey("log.example", KeyType.ED25519, bytes(range(32)))
CLOCK = SignerKey("log.example/clock", KeyType.COSIGNATURE, bytes(range(32, 64)))
STRANGER = SignerKey("stranger.example", KeyType.ED25519, b"s" * 32)
TEXT = "log.example\n3\n" + "A" * 43 + "=\n"
NOW = 1_800_000_000
NOTE = sign(TEXT, [LOG])


def line(name: str, blob: bytes) -> bytes:
    return f"— {name} {base64.b64encode(blob).decode()}\n".encode()


def line_of(signer: SignerKey, text: str = TEXT, time: int = NOW) -> bytes:
    return line(signer.name, signer.verifier.id + signer.sign(text.encode(), time=time))


def test_a_note_is_text_empty_line_and_signatures() -> None:
    note = sign(TEXT, [LOG, CLOCK], time=NOW)
    assert note == TEXT.encode() + b"\n" + line_of(LOG) + line_of(CLOCK)
    opened = open_note(note, [CLOCK.verifier, LOG.verifier])
    assert (opened.text, opened.raw) == (TEXT, note)
    assert opened.signatures == (Signature(LOG.verifier, None), Signature(CLOCK.verifier, NOW))
    assert opened.signature_of(CLOCK.verifier) == Signature(CLOCK.verifier, NOW)
    assert opened.signature_of(STRANGER.verifier) is None


def test_a_cosignature_covers_its_time_and_the_text() -> None:
    signature = CLOCK.sign(TEXT.encode(), time=NOW)
    assert signature[:8] == NOW.to_bytes(8, "big")
    as_plain = SignerKey(CLOCK.name, KeyType.ED25519, CLOCK.seed)
    as_plain.verifier.verify(f"cosignature/v1\ntime {NOW}\n{TEXT}".encode(), signature[8:])
    assert CLOCK.verifier.verify(TEXT.encode(), signature) == NOW
    later = (NOW + 1).to_bytes(8, "big") + signature[8:]
    with pytest.raises(Untrusted):
        CLOCK.verifier.verify(TEXT.encode(), later)


@pytest.mark.parametrize("time", [0, 1, MAX_TIME])
def test_the_extreme_times_of_a_cosignature(time: int) -> None:
    note = sign(TEXT, [CLOCK], time=time)
    assert open_note(note, [CLOCK.verifier]).signatures[0].time == time


@pytest.mark.parametrize("time", [None, -1, MAX_TIME + 1])
def test_a_cosignature_needs_a_possible_time(time: int | None) -> None:
    with pytest.raises(Malformed) as refused:
        sign(TEXT, [LOG, CLOCK], time=time)
    assert refused.value.code == "note.form"


def test_a_cosignature_of_an_impossible_time_is_refused() -> None:
    time = MAX_TIME + 1
    as_plain = SignerKey(CLOCK.name, KeyType.ED25519, CLOCK.seed)
    forged = as_plain.sign(f"cosignature/v1\ntime {time}\n{TEXT}".encode())
    with pytest.raises(Untrusted):
        CLOCK.verifier.verify(TEXT.encode(), time.to_bytes(8, "big") + forged)


def test_the_types_of_one_key_do_not_stand_for_each_other() -> None:
    plain = SignerKey("log.example", KeyType.ED25519, CLOCK.seed)
    clock = SignerKey("log.example", KeyType.COSIGNATURE, CLOCK.seed)
    assert plain.verifier.id != clock.verifier.id
    note = sign(TEXT, [plain, clock], time=NOW)
    assert [signature.time for signature in open_note(note, [plain.verifier, clock.verifier]).signatures] == [
        None,
        NOW,
    ]
    swapped = TEXT.encode() + b"\n" + line(plain.name, plain.verifier.id + clock.sign(TEXT.encode(), time=NOW))
    with pytest.raises(Untrusted):
        open_note(swapped, [plain.verifier])
    swapped = TEXT.encode() + b"\n" + line(clock.name, clock.verifier.id + plain.sign(TEXT.encode()))
    with pytest.raises(Untrusted):
        open_note(swapped, [clock.verifier])


@pytest.mark.parametrize("text", ["\n", "a\n", "\n\n", "a\n\nb\n", "a\n\n\n", "ed è subito sera\n", "— x y\n"])
def test_any_text_that_ends_in_a_newline_survives(text: str) -> None:
    assert open_note(sign(text, [LOG]), [LOG.verifier]).text == text


@pytest.mark.parametrize("text", ["", "a", "a\r\n", "\ta\n", "a\x00\n", "\x1f\n", "\ud800\n"])
def test_a_text_no_note_can_have_is_not_signed(text: str) -> None:
    with pytest.raises(Malformed) as refused:
        sign(text, [LOG])
    assert refused.value.code == "note.form"


def test_lines_of_unknown_keys_are_ignored() -> None:
    same_name = SignerKey(LOG.name, KeyType.ED25519, b"other seed of thirty-two bytes!!")
    unknown = line_of(STRANGER) * 2 + line_of(same_name) + line("other", LOG.verifier.id + b"same id")
    note = TEXT.encode() + b"\n" + unknown + line_of(LOG) + line("grease.invalid", b"bogus")
    assert open_note(note, [LOG.verifier]).signatures == (Signature(LOG.verifier, None),)


def test_every_flipped_byte_is_refused() -> None:
    for place in range(len(NOTE)):
        for bit in range(8):
            flipped = NOTE[:place] + bytes([NOTE[place] ^ 1 << bit]) + NOTE[place + 1 :]
            with pytest.raises((Untrusted, Malformed)):
                open_note(flipped, [LOG.verifier])


def test_every_truncation_is_refused() -> None:
    for end in range(len(NOTE)):
        with pytest.raises((Untrusted, Malformed)):
            open_note(NOTE[:end], [LOG.verifier])


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        LOG.sign(TEXT.encode())[:-1],
        LOG.sign(TEXT.encode()) + b"\x00",
        LOG.sign(b"other\n"),
        bytes(64),
        STRANGER.sign(TEXT.encode()),
    ],
)
def test_a_bad_signature_of_a_known_key_fails_the_note(signature: bytes) -> None:
    note = TEXT.encode() + b"\n" + line_of(STRANGER) + line(LOG.name, LOG.verifier.id + signature)
    with pytest.raises((Untrusted, Malformed)):
        open_note(note, [STRANGER.verifier, LOG.verifier])


def test_a_signature_twice_fails_the_note() -> None:
    with pytest.raises(Untrusted, match="signed twice"):
        open_note(NOTE + line_of(LOG), [LOG.verifier])
    cosigned = sign(TEXT, [CLOCK], time=NOW) + line_of(CLOCK, time=NOW + 60)
    with pytest.raises(Untrusted, match="signed twice"):
        open_note(cosigned, [CLOCK.verifier])


def test_no_known_signature_fails_the_note() -> None:
    for keys in ([], [STRANGER.verifier], [CLOCK.verifier]):
        with pytest.raises(Untrusted) as refused:
            open_note(NOTE, keys)
        assert refused.value.code == "note.signature"


def test_a_trusted_key_may_be_listed_twice() -> None:
    assert open_note(NOTE, [LOG.verifier, VerifierKey.parse(str(LOG.verifier))]).text == TEXT


def test_two_trusted_keys_of_one_name_and_id_are_refused() -> None:
    other = SignerKey(LOG.name, KeyType.ED25519, b"c" * 32).verifier
    other.__dict__["id"] = LOG.verifier.id  # a 32-bit collision, without searching for one
    with pytest.raises(Untrusted, match="two trusted keys"):
        open_note(NOTE, [LOG.verifier, other])


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"\n",
        b"\n\n",
        TEXT.encode(),
        TEXT.encode() + b"\n",
        TEXT.encode() + line_of(LOG),
        TEXT.encode()[:-1] + line_of(LOG),
        b"x" + line_of(LOG, ""),
        b"\n" + line_of(LOG, ""),
        NOTE[:-1],
        NOTE + b"\n",
        NOTE + b"a line\n",
        b"\x01" + NOTE,
        b"\xff" + NOTE,
        NOTE.replace(b"\n", b"\r\n"),
        NOTE.replace(b"\xe2\x80\x94 ", b"- "),
        NOTE.replace(b"\xe2\x80\x94 ", b"\xe2\x80\x94  "),
        NOTE.replace(b"\xe2\x80\x94 ", b"\xe2\x80\x94"),
        NOTE + b"\xe2\x80\x94 name\n",
        NOTE + b"\xe2\x80\x94 name \n",
        NOTE + b"\xe2\x80\x94  QUJDREU=\n",
        NOTE + b"\xe2\x80\x94 a+b QUJDREU=\n",
        NOTE + "— a\u00a0b QUJDREU=\n".encode(),
        NOTE + "— a\u2003b QUJDREU=\n".encode(),
        NOTE + b"\xe2\x80\x94 name QUJDRA==\n",  # four bytes: a key ID and no signature
        NOTE + b"\xe2\x80\x94 name QUJDREU\n",
        NOTE + b"\xe2\x80\x94 name QUJDREV=\n",  # trailing bits
        NOTE + b"\xe2\x80\x94 name QUJDREU= \n",
        NOTE + b"\xe2\x80\x94 name QUJD-_U=\n",
        NOTE + b"\xe2\x80\x94 name QUJD QUJD\n",
    ],
)
def test_what_is_no_note_is_refused(note: bytes) -> None:
    with pytest.raises(Malformed):
        open_note(note, [LOG.verifier])
    with pytest.raises(Malformed):
        add_signatures(note, [CLOCK], time=NOW)


def test_caps() -> None:
    with pytest.raises(TooLarge):
        open_note(b"a" * (MAX_NOTE_BYTES + 1), [LOG.verifier])
    hundred = TEXT.encode() + b"\n" + line_of(LOG) + line_of(STRANGER) * 99
    assert open_note(hundred, [LOG.verifier]).text == TEXT
    with pytest.raises(TooLarge):
        open_note(hundred + line_of(STRANGER), [LOG.verifier])
    with pytest.raises(TooLarge):
        add_signatures(hundred, [CLOCK], time=NOW)
    with pytest.raises(TooLarge):
        sign("a" * MAX_NOTE_BYTES + "\n", [LOG])


def test_sixteen_post_quantum_signatures_are_read() -> None:
    lines = b"".join(line(f"witness{number}.example", bytes(4 + 8 + 4700)) for number in range(16))
    assert open_note(NOTE + lines, [LOG.verifier]).signatures == (Signature(LOG.verifier, None),)


def test_adding_a_signature_keeps_the_others_and_their_order() -> None:
    note = TEXT.encode() + b"\n" + line_of(STRANGER) + line_of(LOG) + line("grease.invalid", b"bogus")
    assert add_signatures(note, [CLOCK], time=NOW) == note + line_of(CLOCK)


def test_adding_a_signature_of_the_same_key_replaces_it() -> None:
    note = sign(TEXT, [CLOCK, LOG], time=NOW)
    renewed = add_signatures(note, [CLOCK], time=NOW + 60)
    assert renewed == TEXT.encode() + b"\n" + line_of(LOG) + line_of(CLOCK, time=NOW + 60)
    assert add_signatures(NOTE, [LOG]) == NOTE


def test_a_note_needs_signers_and_each_once() -> None:
    for signers in ([], [LOG, LOG]):
        with pytest.raises(Malformed) as refused:
            sign(TEXT, signers)
        assert refused.value.code == "note.form"
    with pytest.raises(Malformed):
        add_signatures(NOTE, [])


@pytest.mark.parametrize("name", ["", " ", "a b", "a+b", "a\nb", "a\tb", "a\u2028b", "a\u3000b", "\u0085", "\x1f"])
def test_names_no_key_can_have(name: str) -> None:
    with pytest.raises(Malformed):
        SignerKey(name, KeyType.ED25519, bytes(32))
    with pytest.raises(Malformed):
        VerifierKey(name, KeyType.ED25519, bytes(32))


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_keys_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(Malformed):
        SignerKey("name", KeyType.ED25519, bytes(length))
    with pytest.raises(Malformed):
        VerifierKey("name", KeyType.ED25519, bytes(length))


@pytest.mark.parametrize("signer", [LOG, CLOCK, SignerKey("è/地", KeyType.ED25519, b"k" * 32)])
def test_key_texts_round_trip(signer: SignerKey) -> None:
    assert SignerKey.parse(signer.format()) == signer
    assert VerifierKey.parse(str(signer.verifier)) == signer.verifier


def test_every_mangled_key_text_is_refused() -> None:
    vkey, skey = str(CLOCK.verifier), CLOCK.format()
    for text, parse in ((vkey, VerifierKey.parse), (skey, SignerKey.parse)):
        for start in range(len(text)):
            for end in range(start + 1, len(text) + 1):
                if (start, end) != (0, len(text)):
                    with pytest.raises(Malformed):
                        parse(text[start:end])
        for place, character in enumerate(text):
            with pytest.raises(Malformed):
                parse(text[:place] + chr(ord(character) + 1) + text[place + 1 :])
        for other in ("", "+", "++", "++++", text + "\n", " " + text, text + "=", text.upper(), text * 9):
            with pytest.raises(Malformed):
                parse(other)
    with pytest.raises(Malformed):
        VerifierKey.parse(skey)
    with pytest.raises(Malformed):
        SignerKey.parse(vkey)


def test_a_key_of_an_unknown_type_is_refused() -> None:
    for kind in (0x00, 0x02, 0x05, 0x06, 0xFF):
        encoded = base64.b64encode(bytes([kind]) + bytes(32)).decode()
        with pytest.raises(Malformed):
            VerifierKey.parse(f"name+00000000+{encoded}")


def test_a_seed_is_never_shown() -> None:
    secret = LOG.format()
    texts = [repr(LOG), str(LOG)]
    for mangled in (secret[:-1], secret + "A", secret.replace("PRIVATE", "private")):
        with pytest.raises(TreatyError) as refused:
            SignerKey.parse(mangled)
        error: BaseException | None = refused.value
        while error is not None:
            texts.append(str(error))
            error = error.__cause__
    assert texts
    for text in texts:
        assert secret.rsplit("+", 1)[1][4:20] not in text
        assert repr(LOG.seed)[2:-1] not in text
