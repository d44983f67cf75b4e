"""`treaty trust explain`, `treaty trust forget`: the facts that registries proved to this agent, and their contradictions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from treaty_client.policy import Policy
from treaty_client.protocols.answers import contradictions
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.store import Lockfile, line_of
from treaty_client.protocols.verification.contradiction import MAX_CONTRADICTION, Contradiction, said
from treaty_client.protocols.verification.explanation import step_evidence
from treaty_client.protocols.verification.records import VerifiedProtocol
from treaty_client.protocols.verification.steps import Step, VerificationFailed
from treaty_client.registries.leaves import SeenLeaf, subjects_of
from treaty_client.registries.trust import TrustedRegistry
from treaty_consensus import canonical
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.printable import printable
from treaty_consensus.protocol import is_topic, parse_protocol_uri
from treaty_io.codes import ContradictionCode, MemoryCode

from .context import Options, run
from .values import Name, Publishers

Subject = Annotated[Name, Parameter(help="A protocol's URI, a topic, or a DID.")]


def explain(subject: Subject, /, *, publisher: Publishers = (), options: Options = Options()) -> None:
    """Show the proved facts about a protocol, a topic or a DID, and the contradictions of registries.

    Of a protocol that was fetched the ten steps are taken again, offline, and shown with their evidence.
    """
    name = _subject(subject)
    value, parts = _steps(subject, options.policy(*publisher), options) if name.startswith("protocol/") else ({}, [])
    values: list[dict[str, Any]] = []
    for registry in _asked(options):
        leaves = options.registries.memory.about(registry.name.origin, {name})
        against = [
            contradiction for contradiction in _contradictions(options, registry) if _concerns(contradiction[1], subject, name)
        ]
        if leaves or against:
            values.append(
                {
                    "origin": registry.name.origin,
                    "leaves": [_leaf_value(leaf) for leaf in leaves],
                    "contradictions": [_contradiction_value(*contradiction) for contradiction in against],
                }
            )
            parts += [f"[bold]{escape(registry.name.origin)}[/]", _table(leaves)]
            parts += [_contradiction_lines(*contradiction) for contradiction in against]
    if not values and not value:
        raise NotFound(MemoryCode.NOTHING, f"No trusted registry has proved a fact about {subject[:200]} to this agent.")
    options.output.result({"subject": subject, "registries": values, **value}, *parts)


def _steps(uri: str, policy: Policy, options: Options) -> tuple[dict[str, Any], list[Any]]:
    """Take the ten steps with stored bytes. Return their evidence, or the step that does not hold, and the lines for a person;
    nothing where bytes are missing."""
    parsed = parse_protocol_uri(uri)

    async def work() -> VerifiedProtocol | None:
        async with Fetcher(options.home, policy, options.network) as fetcher:
            return await asyncio.to_thread(fetcher.stored, parsed)

    try:
        verified = run(work())
    except VerificationFailed as error:
        failed = {"step": error.step.value, "title": error.step.title, "code": error.code, "message": error.message}
        return {"failed": failed}, [_step_line("[red]✗[/]", error.step, error.message)]
    if verified is None:
        return {}, []
    steps = step_evidence(verified, Lockfile(options.home).read().get(line_of(parsed)))
    value = {"steps": [{"step": each.step.value, "title": each.step.title, **each.facts} for each in steps]}
    return value, [_step_line("[green]✓[/]", each.step, each.sentence) for each in steps]


def _step_line(mark: str, step: Step, sentence: str) -> str:
    return f"{mark} {step.value:>2} {step.title:<12} [dim]{escape(printable(sentence, 600))}[/]"


def forget(subject: Subject, /, *, yes: Annotated[bool, Parameter()] = False, options: Options = Options()) -> None:
    """Forget the proved facts about a protocol, a topic or a DID. The lock and the evidence stay.

    Parameters
    ----------
    yes
        Confirm: afterwards a registry may claim anything about it, as at a first contact.
    """
    name = _subject(subject)
    # Forgetting removes a protection, so it is never the effect of a mistyped command.
    if not yes:
        raise Refused(
            SystemCode.UNCONFIRMED,
            f"Without the proved facts, a contradiction of a registry about {subject[:200]} cannot be detected.",
            fix="Show the facts first: treaty trust explain SUBJECT. Then: treaty trust forget SUBJECT --yes",
        )
    number = sum(options.registries.memory.forget(registry.name.origin, name) for registry in _asked(options))
    options.output.result(
        {"subject": subject, "forgotten": number}, f"[green]✓[/] {number} leaves about {escape(subject)} are forgotten."
    )


def _asked(options: Options) -> list[TrustedRegistry]:
    return [options.trusted()] if options.registry else list(options.registries.all().values())


def _subject(text: str) -> str:
    """Return the name under which a subject is remembered."""
    if text.startswith("https://"):
        return f"protocol/{text}"
    if text.startswith("did:"):
        return f"identity/{text}"
    if is_topic(text):
        return f"topic/{text}"
    raise Malformed(MemoryCode.NOTHING, f"{text[:120]!r} is not a protocol's URI, a topic or a DID.")


def _contradictions(options: Options, registry: TrustedRegistry) -> list[tuple[Path, Contradiction, bool]]:
    """Return the valid evidence against a registry under its key, and whether it excludes itself. Damaged files are skipped."""
    proofs = []
    for path in contradictions(options.registries.evidence, registry.name.origin):
        try:
            with path.open("rb") as file:
                # One byte more than the cap lets the parser refuse a file that is too large.
                evidence = Contradiction.parse(file.read(MAX_CONTRADICTION + 1))
            if not {evidence.key, *evidence.earlier} <= {term.log for term in registry.keys.terms}:
                raise Untrusted(ContradictionCode.FORM, "It is of another log.")
            proofs.append((path, evidence, evidence.verify()))
        # One damaged file must not hide the other evidence.
        except (TreatyError, OSError):
            continue
    return proofs


def _concerns(evidence: Contradiction, subject: str, name: str) -> bool:
    return evidence.subject == subject or any(name in subjects_of(leaf.statement) for leaf in (*evidence.seen, *evidence.shown))


def _table(leaves: list[SeenLeaf]) -> Table:
    table = Table("leaf", "statement", "proved in", box=None)
    for leaf in leaves:
        table.add_row(str(leaf.index), escape(said(leaf.statement)), f"a log of {_size(leaf)} leaves")
    return table


def _contradiction_lines(path: Path, evidence: Contradiction, excludes: bool) -> str:
    sides = [f"  it proved:  leaf {leaf.index}: {escape(said(leaf.statement))}" for leaf in evidence.seen]
    sides += [f"  it showed:  leaf {leaf.index}: {escape(said(leaf.statement))}" for leaf in evidence.shown]
    what = "proved two facts that exclude each other" if excludes else "left out a fact that it had proved"
    return "\n".join((f"[bold red]![/] It {what}  [dim]{escape(evidence.code)}[/]", *sides, f"  evidence: {escape(str(path))}"))


def _contradiction_value(path: Path, evidence: Contradiction, excludes: bool) -> dict[str, Any]:
    return {
        "file": str(path),
        "code": evidence.code,
        "excludes": excludes,
        "seen": [_leaf_value(leaf) for leaf in evidence.seen],
        "shown": [_leaf_value(leaf) for leaf in evidence.shown],
        "answer": evidence.answer.decode(),
    }


def _leaf_value(leaf: SeenLeaf) -> dict[str, Any]:
    return {
        "index": leaf.index,
        "type": leaf.statement.type,
        "statement": leaf.statement.id,
        "by": list(leaf.statement.by),
        "said": said(leaf.statement),
        "leaf": canonical.b64encode(leaf.leaf),
        "proof": [*map(canonical.b64encode, leaf.proof)],
        "checkpoint": leaf.checkpoint.decode(),
    }


def _size(leaf: SeenLeaf) -> int:
    return Checkpoint.parse(leaf.checkpoint.decode().partition("\n\n")[0] + "\n").size
