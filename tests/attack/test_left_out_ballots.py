"""Censorship: a registry that leaves out a ballot which its witnesses had stamped, and those who would accuse an honest one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signers import ORIGIN, Signer, domain_signer, identity_body, key_signer, signed
from simulated_registry import ALICE, BOB, LOG_KEY, NAME, OPERATOR, TOPIC, SimulatedRegistry, with_echo
from witnesses import WITNESSES, witness_key

from treaty_client.audit.auditor import AuditOptions, AuditReport, audit
from treaty_consensus import kinds, stamped
from treaty_consensus.audit import Replay
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.facts import LogFact
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import KeyType, SignerKey, add_signatures, sign
from treaty_consensus.stamped import LASTS, MARGIN, Stamped, admissible, stamp, stamp_text
from treaty_consensus.statement import Statement

FOUR = (*WITNESSES, witness_key("w4.example"))
CLOSE = with_echo().now  # the log may not be ahead of the cosignatures
IN_TIME = CLOSE - MARGIN
Stamps: TypeAlias = Callable[[bytes], Stamped]


def at_the_close() -> SimulatedRegistry:
    """The registry at that time, however much later a test begins."""
    registry = with_echo()
    registry.now = CLOSE
    return registry


def silent(*progress: object) -> None:
    """Who does not listen."""


def ballot(registry: SimulatedRegistry, seq: int, *, seen: bytes | None = None) -> kinds.Ballot:
    return kinds.Ballot(TOPIC, seq, (("none",),), (seen or registry.checkpoint()).decode())


def report(registry: SimulatedRegistry, *, epoch: int) -> kinds.Report:
    return kinds.Report(TOPIC, "cd" * 32, "ab" * 32, "agreed", epoch, registry.checkpoint().decode())


def stamped_by(*witnesses: SignerKey, at: int = IN_TIME) -> Stamps:
    """Stamps of these witnesses, at one time."""
    return lambda leaf: Stamped.of(leaf, sign(stamp_text(ORIGIN, leaf), witnesses, time=at))


def witnessed(registry: SimulatedRegistry, keys: Sequence[SignerKey] = FOUR, quorum: int = 3) -> SimulatedRegistry:
    """Have every next epoch closed with witnesses."""
    named = kinds.Witnesses(tuple(str(key.verifier) for key in keys), quorum)
    registry.add(msgspec.structs.replace(development_parameters(), witnesses=named), OPERATOR)
    registry.add(ballot(registry, 0), ALICE)
    registry.decide()
    return registry


def close(registry: SimulatedRegistry, *cosigners: SignerKey, at: int = CLOSE) -> int:
    """Close the epoch; the first decision's leaf."""
    replay = Replay()
    for leaf in registry.leaves:
        replay.append(leaf)
    note = sign(Checkpoint(ORIGIN, replay.size, replay.root()).format(), [LOG_KEY])
    note = add_signatures(note, cosigners or FOUR[:3], time=at)
    for due in replay.decide():
        registry.put(due.transcript)
        registry.put(due.roll)
        seen = msgspec.structs.replace(due.decision.input, witnessed=note.decode())
        registry.add(msgspec.structs.replace(due.decision, input=seen), OPERATOR)
    return replay.size


async def audited(registry: SimulatedRegistry, folder: Path, *files: bytes) -> AuditReport:
    options = AuditOptions(stamped=[Stamped.parse(data) for data in files], from_start=True)
    return await audit(NAME, folder, folder / "evidence", registry.network(), progress=silent, options=options)


async def accused(registry: SimulatedRegistry, folder: Path, stamped: Stamped) -> str | None:
    """What an auditor says who is given a stamped statement; None where the log holds."""
    try:
        await audited(registry, folder, stamped.format())
    except Untrusted as error:
        assert error.code == "audit.left-out"
        return error.message
    return None


@pytest.mark.threat(361)
async def test_a_stamped_ballot_that_is_left_out_proves_it(tmp_path: Path) -> None:
    registry = witnessed(at_the_close())
    statement = signed(ballot(registry, 0), BOB)
    proof = stamped_by(*FOUR[:3])(statement.leaf)
    close(registry)
    accusations = await accused(registry, tmp_path, proof)
    assert accusations is not None and statement.id in accusations and BOB.did in accusations
    registry.submit(statement.leaf)
    assert await accused(registry, tmp_path, proof) is not None, "too late is left out of the epoch"


@pytest.mark.threat(361)
@pytest.mark.parametrize("kind", ["report", "vouch"])
async def test_reports_and_vouches_are_owed_too(tmp_path: Path, kind: str) -> None:
    registry = witnessed(at_the_close())
    statement = signed(kinds.Vouch(ALICE.did, 0), BOB) if kind == "vouch" else signed(report(registry, epoch=1), ALICE, BOB)
    close(registry)
    accusations = await accused(registry, tmp_path, stamped_by(*FOUR)(statement.leaf))
    assert accusations is not None and f"{kind} {statement.id}" in accusations


async def test_a_log_that_has_it_holds(tmp_path: Path) -> None:
    registry = witnessed(at_the_close())
    statement = signed(ballot(registry, 0), BOB)
    registry.submit(statement.leaf)
    close(registry)
    proof = stamped_by(*FOUR)(statement.leaf)
    report = await audited(registry, tmp_path, proof.format())
    assert report.logged == (proof,)
    later = registry.copy()
    close(later, at=CLOSE + MARGIN)
    assert await accused(later, tmp_path / "later", proof) is None


async def test_two_of_four_witnesses_always_suffice(tmp_path: Path) -> None:
    registry = witnessed(at_the_close())
    statement = signed(ballot(registry, 0), BOB)
    for witnesses in (FOUR[:3], FOUR[1:], (FOUR[0], *FOUR[2:])):
        fork = registry.copy()
        close(fork, *witnesses)
        # The fourth witness is the registry's friend, and stamped nothing.
        assert (
            await accused(fork, tmp_path / witnesses[0].name / witnesses[1].name, stamped_by(*FOUR[:3])(statement.leaf))
            is not None
        )


def tampered(leaf: bytes) -> bytes:
    """The same payload, so the same id, with a signature that does not verify."""
    stamp = stamped.stampable(leaf)
    wrong = (bytes(64), *stamp.signatures[1:])
    return Statement(stamp.body, stamp.log, stamp.by, stamp.issued, stamp.payload, wrong).leaf


def honest(registry: SimulatedRegistry, author: Signer = BOB, seq: int = 0) -> bytes:
    return signed(ballot(registry, seq), author).leaf


FALSE: dict[str, Callable[[SimulatedRegistry], Stamped]] = {
    "a minute before the close": lambda r: stamped_by(*FOUR, at=IN_TIME + 1)(honest(r)),
    "longer ago than a witness keeps it": lambda r: stamped_by(*FOUR, at=CLOSE - LASTS - 1)(honest(r)),
    "after the close": lambda r: stamped_by(*FOUR, at=CLOSE + MARGIN)(honest(r)),
    "by one witness of four, which lies": lambda r: stamped_by(FOUR[0])(honest(r)),
    "by two witnesses, of which one did not cosign": lambda r: stamped_by(FOUR[0], FOUR[3])(honest(r)),
    "by witnesses that the parameters do not name": lambda r: stamped_by(*map(witness_key, ("x.a", "x.b", "x.c")))(honest(r)),
    "by keys that the witnesses had before": lambda r: stamped_by(
        *(SignerKey(key.name, key.type, bytes([number]) * 32) for number, key in enumerate(FOUR, 1))
    )(honest(r)),
    "with a wrong signature": lambda r: stamped_by(*FOUR)(tampered(honest(r))),
    "of an unknown author": lambda r: stamped_by(*FOUR)(honest(r, domain_signer("unknown.example"))),
    "by another key of the author": lambda r: stamped_by(*FOUR)(
        signed(ballot(r, 0), Signer(BOB.did, BOB.key_id, ALICE.private_key)).leaf
    ),
    "with a seq that is too high": lambda r: stamped_by(*FOUR)(honest(r, seq=1)),
    "with a seq that another ballot has": lambda r: stamped_by(*FOUR)(
        signed(kinds.Ballot(TOPIC, 0, (("ab" * 32,),), r.checkpoint().decode()), ALICE).leaf
    ),
    "of another epoch": lambda r: stamped_by(*FOUR)(signed(report(r, epoch=0), ALICE, BOB).leaf),
    "with a checkpoint that the log never signed": lambda r: stamped_by(*FOUR)(
        signed(ballot(r, 0, seen=sign(Checkpoint(ORIGIN, 1, b"\1" * 32).format(), [FOUR[0]], time=CLOSE)), BOB).leaf
    ),
}


@pytest.mark.threat(362)
@pytest.mark.parametrize("case", FALSE)
async def test_an_honest_registry_is_not_accused_by(tmp_path: Path, case: str) -> None:
    registry = witnessed(at_the_close())
    proof = FALSE[case](registry)
    close(registry)
    before = list(registry.leaves)
    assert await accused(registry, tmp_path, proof) is None
    assert registry.leaves == before


@pytest.mark.threat(362)
@pytest.mark.parametrize(
    "stamps",
    [
        lambda leaf: sign(stamp_text("other.example", leaf), FOUR[:3], time=IN_TIME),
        lambda leaf: sign(stamp_text(ORIGIN, tampered(leaf)), FOUR[:3], time=IN_TIME),
        lambda leaf: sign(Checkpoint(ORIGIN, 7, b"\1" * 32).format(), FOUR[:3], time=IN_TIME),
    ],
    ids=["another log", "another signature of the same statement", "a checkpoint"],
)
def test_a_stamp_of_something_else_is_none(stamps: Callable[[bytes], bytes]) -> None:
    leaf = honest(at_the_close())
    with pytest.raises(TreatyError) as error:
        Stamped.of(leaf, stamps(leaf))
    assert error.value.code == "stamp.form"


def test_a_stamp_is_never_a_cosignature_of_a_checkpoint() -> None:
    with pytest.raises(TreatyError) as error:
        Checkpoint.parse(stamp_text(ORIGIN, b"leaf"))
    assert error.value.code == "log.form"
    with pytest.raises(TreatyError):  # an ML-DSA-44 key cosigns nothing else
        stamp(honest(at_the_close()), SignerKey("w.example", KeyType.ML_DSA_44, b"\1" * 32), CLOSE)


@pytest.mark.threat(362)
async def test_a_forged_witness_line_voids_the_stamp(tmp_path: Path) -> None:
    registry = witnessed(at_the_close())
    leaf = honest(registry)
    proof, other = stamped_by(*FOUR[:3])(leaf), stamped_by(FOUR[0])(honest(registry, ALICE, 1))
    line = other.stamp.decode().splitlines()[-1]
    forged = Stamped.of(leaf, sign(stamp_text(ORIGIN, leaf), FOUR[1:3], time=IN_TIME) + f"{line}\n".encode())
    close(registry)
    assert await accused(registry, tmp_path, proof) is not None
    assert await accused(registry, tmp_path / "forged", forged) is None


@pytest.mark.threat(361)
async def test_of_two_ballots_that_follow_each_other_both_are_owed(tmp_path: Path) -> None:
    registry = witnessed(at_the_close())
    proofs = [stamped_by(*FOUR)(honest(registry, seq=seq)) for seq in (1, 0)]
    close(registry)
    with pytest.raises(Untrusted, match="left out 2 statements"):
        await audited(registry, tmp_path, *(proof.format() for proof in proofs))


def test_a_strangers_key_counts_in_development_alone() -> None:
    registry, stranger = witnessed(at_the_close()), key_signer("stranger")
    statement = signed(ballot(registry, 0), stranger)
    log = registry.facts["log"]
    assert isinstance(log, LogFact)
    statements = stamped.admissible(registry.facts, log, "development", [statement], len(registry.leaves))
    assert [verified.statement for verified in statements] == [statement]
    assert not stamped.admissible(registry.facts, log, "open", [statement], len(registry.leaves))


def test_a_stamped_file_has_one_spelling_and_one_order() -> None:
    registry = at_the_close()
    made = stamped_by(FOUR[0])(honest(registry))
    data = made.format()
    assert Stamped.parse(data) == made
    for wrong in (
        data + b"\n",
        data.replace(b'"stamped":1', b'"stamped":2'),
        data[:-1],
        b"{}",
        data.replace(b"treaty-stamp", b"x"),
    ):
        with pytest.raises(TreatyError):
            Stamped.parse(wrong)
    status = signed(kinds.Status("https://registry.example/protocols/alice.example/echo/1.0", "deprecated"), ALICE)
    with pytest.raises(TreatyError) as error:
        stamp(status.leaf, FOUR[0], CLOSE)
    assert error.value.code == "stamp.form"


READY = witnessed(at_the_close())
VOTERS = tuple(domain_signer(f"voter{number}.example") for number in range(3))
ACTS = st.one_of(
    st.tuples(st.just("learn"), st.sampled_from(VOTERS)),
    st.tuples(st.just("vote"), st.sampled_from(VOTERS), st.integers(0, 2)),
    st.tuples(st.just("stamp"), st.sampled_from(VOTERS), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.sampled_from([MARGIN // 2, MARGIN, LASTS])),
    st.tuples(st.just("close")),
)


def taken(registry: SimulatedRegistry, stamps: Iterable[Stamped]) -> list[bytes]:
    """The stamped statements that the log would take now."""
    log = registry.facts["log"]
    assert isinstance(log, LogFact)
    statements = admissible(registry.facts, log, "development", [each.statement for each in stamps], len(registry.leaves))
    return [verified.statement.leaf for verified in statements]


@pytest.mark.threat(362)
@settings(max_examples=30, deadline=None)
@given(acts=st.lists(ACTS, max_size=14), reads=st.booleans())
def test_a_registry_is_accused_only_of_a_left_out_duty(acts: list[tuple[Any, ...]], reads: bool) -> None:
    registry, now, is_due = READY.copy(), CLOSE, False
    stamps: dict[bytes, tuple[int, Stamped]] = {}
    for act, *what in [*acts, ("wait", MARGIN), ("close",)]:
        if act == "wait":
            now += what[0]
        elif act == "learn":
            with suppress(TreatyError):
                registry.add(identity_body(what[0]), OPERATOR)
        elif act == "close":
            for leaf in taken(registry, [stamp for _, stamp in stamps.values()]) if reads else ():
                registry.submit(leaf)
            is_due |= bool(taken(registry, [stamp for at, stamp in stamps.values() if MARGIN <= now - at <= LASTS]))
            close(registry, at=now)
        else:
            leaf = signed(ballot(registry, what[1]), what[0]).leaf
            if act == "stamp":
                stamps.setdefault(leaf, (now, stamped_by(*FOUR, at=now)(leaf)))
            else:
                with suppress(TreatyError):
                    registry.submit(leaf)
    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(audited(registry, Path(folder), *(stamp.format() for _, stamp in stamps.values())))
            accusation = ""
        except Untrusted as error:
            accusation = error.code
    assert accusation == ("audit.left-out" if is_due else "")
    assert not (is_due and reads)
