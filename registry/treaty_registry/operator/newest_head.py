"""Find out whether a copy of a log has every leaf that was signed, before a process goes on from this copy.

A log forks when a copy lacks leaves that were signed, and goes on. So each place that people name is asked for the newest signed
head:

- the record of the lost registry (`head`), which has every head that was ever signed;
- the witnesses, which have every head that they cosigned. A head that was signed in the last second before the loss may have
  reached no witness: only the record proves that there was none.

If the copy has more leaves than each of them shows, none of them is the newest, and people have to confirm the number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx

from treaty_client.audit.mirror import Mirror
from treaty_consensus.canonical import parse_decimal
from treaty_consensus.codes import WitnessCode
from treaty_consensus.errors import NotFound, Refused, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint, SignedCheckpoint
from treaty_consensus.log.merkle import MAX_SIZE
from treaty_consensus.log.witness import AddCheckpoint, cosignature
from treaty_io.network.hosts import Network

from ..codes import CopyCode
from ..data_directory import read_record, record_at
from ..log.fence import signed_time
from ..settings import Settings, WitnessName

_PATIENCE = 10.0  # seconds for one witness
_MAX_ANSWER = 64 * 1024  # bytes; a witness answers with a few lines


@dataclass(frozen=True)
class SignedHeads:
    """Where the newest signed head of a lost registry can be learnt. `record`: the path of its file `head`, or the URL of its
    option `--head`. `witnesses`: those of its log. `size`: the number of leaves that people confirm."""

    record: str | None = None
    witnesses: Sequence[WitnessName] = ()
    size: int | None = None


async def check_newest(
    copy: Mirror, signed: SignedCheckpoint, evidence: SignedHeads, settings: Settings, network: Network
) -> tuple[str, ...]:
    """Compare a copy with every signed head that is known. Returns the newest signed time, in the form of a record.

    `signed`: the checkpoint of the copy. `settings`: of the process that will go on.

    Raises `Untrusted` (`copy.behind`, `copy.other-history`) when the log must not go on from this copy, `Refused`
    (`copy.unproven`) when no place shows its very head, and `Unavailable` (`witness.unreachable`).
    """
    head, seen = signed.checkpoint, dict[str, int]()
    heads = await asyncio.to_thread(records, evidence, settings, head.origin)
    for place, record in heads:
        seen[place] = record.size
        await asyncio.to_thread(compare, copy, head, record, place)
    for witness in evidence.witnesses:
        seen[witness.key.name] = size = await _cosigned(witness, signed, network)
        if size > head.size:
            raise _behind(head, size, f"the witness {witness.key.name}")
    # A place that shows fewer leaves is an older copy, or lags behind. So it cannot show that no leaf is missing.
    if head.size not in seen.values() and evidence.size != head.size:
        sizes = "; ".join(f"{place} shows {size}" for place, size in seen.items()) or "No place of it is named"
        raise Refused(
            CopyCode.UNPROVEN,
            f"Nothing shows that the {head.size} leaves of this copy are all that the log signed. {sizes}. "
            "A log that goes on from an older copy forks.",
            fix="Name the record of the lost registry (--record DATA/head), or the witnesses of the log (--witness URL#KEY). "
            f"If neither is left, confirm the number: --accept-size {head.size}.",
        )
    # Of two records the later one: a restore that was interrupted may have left the other.
    newest = max((record for _, record in heads), key=_age, default=None)
    return newest.extensions if newest else ()


def _age(record: Checkpoint) -> tuple[int, int]:
    time = signed_time(record)
    return record.size, time.time if time else -1


def compare(copy: Mirror, head: Checkpoint, signed: Checkpoint, place: str) -> None:
    """Compare a copy, whose checkpoint is `head`, with another signed head of the log. Blocking. Raises `Untrusted`."""
    if signed.size > head.size:
        raise _behind(head, signed.size, place)
    if copy.root_at(signed.size) != signed.root:
        raise _other_history(place)


def records(evidence: SignedHeads, settings: Settings, origin: str) -> list[tuple[str, Checkpoint]]:
    """Return the records that are there, each with its place: the one that is named, and the one at the place of this log's own.

    Blocking. Raises as `record_at`.
    """
    times = [(evidence.record, record_at(evidence.record, origin))] if evidence.record is not None else []
    # Outside of the data directory, it may be the lost registry's. A crash before the first leaf leaves one of an empty tree.
    with suppress(NotFound):
        own = read_record(settings, origin)
        times += [(settings.head_object or str(settings.fence), own)] if own.size else []
    return times


async def _cosigned(witness: WitnessName, signed: SignedCheckpoint, network: Network) -> int:
    """Return the size of the head that a witness cosigned last, at most that of `signed` if it is the same.

    It is asked to cosign the head of the copy from that head's own size (C2SP tlog-witness). It answers with its own size
    unless that head is its newest. Raises `Unavailable` (`witness.unreachable`), also for a witness that does not know the log.
    """
    size = signed.checkpoint.size
    request = AddCheckpoint(size, (), signed.note).format()
    try:
        async with network.client(timeout=_PATIENCE) as client:
            request_to_witness = client.build_request("POST", f"{witness.url}/add-checkpoint", content=request)
            answer = await client.exchange(request_to_witness, limit=_MAX_ANSWER)
        if answer.status == httpx.codes.OK:
            # Its line, and not the status: a server in its place may answer anything.
            cosignature(answer.body, signed.note, witness.key)
            return size
        if answer.status == httpx.codes.CONFLICT:
            return parse_decimal(answer.body.decode("ascii", "replace").removesuffix("\n"), limit=MAX_SIZE)
    except (httpx.HTTPError, OSError, Unavailable) as error:
        raise _silent(witness, type(error).__name__) from error
    except Untrusted as error:
        raise _silent(witness, "its cosignature does not verify") from error
    # The same size and another root: C2SP answers 409 without a size, or 422.
    except TreatyError as error:
        raise _other_history(f"the witness {witness.key.name}") from error
    if answer.status == httpx.codes.UNPROCESSABLE_ENTITY:
        raise _other_history(f"the witness {witness.key.name}")
    raise _silent(witness, f"status {answer.status}")


def _behind(head: Checkpoint, signed: int, place: str) -> Untrusted:
    return Untrusted(
        CopyCode.BEHIND,
        f"By {place} the log has signed {signed} leaves, and this copy has {head.size}. A log that goes on from it forks.",
        fix="Take a newer backup or a mirror that has these leaves. `restore --mirror URL` completes a backup from a mirror. "
        "Without them this log ends: begin a new one under a new name.",
    )


def _other_history(place: str) -> Untrusted:
    return Untrusted(
        CopyCode.OTHER_HISTORY,
        f"This copy is of another history of the log than {place}.",
        fix="Do not go on from it. Keep both: together they show which key signed two histories.",
    )


def _silent(witness: WitnessName, reason: str) -> Unavailable:
    return Unavailable(
        WitnessCode.UNREACHABLE,
        f"The witness {witness.key.name} did not say which head it cosigned last: {reason}.",
        fix="Try again. Leave a witness out only if another one, or the record, shows the newest head.",
    )
