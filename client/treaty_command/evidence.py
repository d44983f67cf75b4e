"""`treaty evidence`, and `treaty verify FILE`: who agreed on a protocol, in one file that anybody checks offline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.markup import escape

from treaty_client.audit.dossier import Dossier, verify_dossier
from treaty_client.audit.strength import strength, warning
from treaty_client.registries.api import RegistryClient
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Refused
from treaty_consensus.kinds import Newer, Status
from treaty_consensus.printable import printable
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io import durable

from .context import Options, run
from .values import Uri

SHOWN = 12
"""Pairs that are named for a person; JSON has all."""


def evidence(uri: Uri, /, *, output: Path | None = None, options: Options = Options()) -> None:
    """Write one file that shows who agreed on a protocol, and verify it: reports, decision, handlers, cosigned checkpoint.

    Parameters
    ----------
    uri
        The protocol's URI.
    output
        The file. Default: NAME-VERSION.evidence.json in this folder. An existing file is not replaced.
    """
    parsed = parse_protocol_uri(uri)
    path = output or Path(f"{parsed.name}-{parsed.version}.evidence.json")
    if path.exists():
        raise Refused(SystemCode.EXISTS, f"{path} exists.", fix="Name another file: --output FILE")
    registry = options.registries.get(parsed.origin)

    async def work() -> bytes:
        async with RegistryClient(registry.name.base_url, options.network) as client:
            return await client.evidence(parsed)

    data = run(work())
    dossier = verify_dossier(data, options.registries, options.policy())
    durable.write(path, data)
    options.output.result({"file": str(path), **_value(dossier)}, *_lines(dossier), f"Check it anywhere: treaty verify {path}")


def verify_evidence(path: Path, options: Options) -> None:
    """Verify a file that `treaty evidence` wrote, offline."""
    dossier = verify_dossier(path.read_bytes(), options.registries, options.policy())
    options.output.result(_value(dossier), *_lines(dossier))


def _state(status: Status | Newer | None) -> str:
    return "active" if status is None else status.state if isinstance(status, Status) else "unknown to this release"


def _value(dossier: Dossier) -> dict[str, Any]:
    decision, transcript = dossier.decision, dossier.transcript
    candidate = transcript.spoken.get(dossier.published.document.sha256) if transcript is not None else None
    return {
        "uri": str(dossier.uri),
        "hash": dossier.published.document.sha256,
        "publisher": dossier.author,
        "index": dossier.index,
        "status": _state(dossier.status),
        "topic": dossier.published.topic,
        "decision": decision
        and {
            "epoch": decision.epoch,
            "state": dict(decision.states).get(dossier.published.document.sha256),
            "pairs": candidate and candidate.pairs,
            "clusters": candidate and candidate.clusters,
            "voters": candidate and candidate.voters,
        },
        "reports": [{"index": each.index, "epoch": each.epoch, "parties": list(each.parties)} for each in dossier.agreements],
        "pairs": len(dossier.pairs),
        "handlers": [
            {
                "filename": handler.body.filename,
                "wheel": handler.body.wheel.sha256,
                "publisher": handler.publisher,
                "status": _state(handler.status),
            }
            for handler in dossier.handlers
        ],
        "checkpoint": {"size": dossier.checkpoint.checkpoint.size, "time": dossier.checkpoint.time},
    }


def _lines(dossier: Dossier) -> Iterator[str]:
    uri, transcript = escape(str(dossier.uri)), dossier.transcript
    age = int(time.time()) - (dossier.checkpoint.time or 0)
    yield f"[green]✓[/] [bold]{uri}[/] was published by {escape(dossier.author)}, leaf {dossier.index}; {_state(dossier.status)}."
    yield f"  The proofs are {age} s old; a file cannot show later events."
    agents = {did for pair in dossier.pairs for did in pair}
    reports = len(dossier.agreements)
    yield f"[green]✓[/] {reports} signed reports, the newest of each agent, show that {len(agents)} agents agreed on it."
    for pair in sorted(dossier.pairs)[:SHOWN]:
        yield f"    {escape(' – '.join(pair))}"
    if len(dossier.pairs) > SHOWN:
        yield f"    and {len(dossier.pairs) - SHOWN} more: --json"
    candidate = transcript.spoken.get(dossier.published.document.sha256) if transcript is not None else None
    if dossier.decision is None:
        yield f"[yellow]•[/] Nothing is decided in {escape(dossier.published.topic)}."
    else:
        state = dict(dossier.decision.states).get(dossier.published.document.sha256, "not named")
        yield f"[green]✓[/] Epoch {dossier.decision.epoch} of {escape(dossier.published.topic)}: {escape(state)}."
    if candidate is not None and transcript is not None:
        yield f"    {candidate.pairs} pairs of {candidate.clusters} clusters count. An audit recomputes it: treaty audit"
        yield from (f"    {escape(line)}" for line in (*strength(candidate, transcript), *warning(candidate)))
    for handler in dossier.handlers:
        yield f"  {escape(printable(handler.body.filename, 200))} by {escape(handler.publisher)}, {_state(handler.status)}"
