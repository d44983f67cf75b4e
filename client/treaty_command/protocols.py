"""`treaty publish`, `fetch`, `verify`: publish protocols, and get them from a registry, with all proofs."""

from __future__ import annotations

import dataclasses
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from msgspec import to_builtins
from rich.markup import escape

from treaty_client.policy import Policy
from treaty_client.protocols.export import export, verify_directory
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.records import VerifiedProtocol
from treaty_client.protocols.verification.steps import Step, VerificationFailed
from treaty_client.protocols.verification.topic import TopicView
from treaty_client.registries.api import RegistryClient
from treaty_consensus.errors import TreatyError
from treaty_consensus.printable import printable
from treaty_io.codes import PolicyCode
from treaty_io.home import default_home

from .context import Options, run
from .elected import elected, names_topic, topic_views, why
from .evidence import verify_evidence
from .locking import accepted
from .output import Output
from .values import Name, Publishers, Uri
from .verdicts import verdict_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treaty_client.statements.publish import Published


def publish(
    folder: Path,
    /,
    *,
    namespace: str | None = None,
    dry_run: Annotated[bool, Parameter()] = False,
    allow_uncovered: Annotated[bool, Parameter()] = False,
    options: Options = Options(),
) -> None:
    """Publish a folder: its document, and its handler if it has one. Safe to repeat.

    Parameters
    ----------
    folder
        A folder with protocol.toml and document.md.
    namespace
        A namespace whose owner allows you to publish in it. Default: your own.
    dry_run
        Do everything but the submission: build, replay the vectors, print the changes since the version before, ask the registry
        whether the version is free.
    allow_uncovered
        Publish although no vector reaches an operation.
    """
    from treaty_client.protocols.project import load_project  # here, because Sigstore and the sandbox are slow to import
    from treaty_client.statements.publish import Publisher

    project = load_project(folder)
    registry = options.trusted()

    async def work() -> list[Published]:
        done = []
        async with RegistryClient(registry.name.base_url, options.network) as client:
            origin, copies = registry.name.origin, options.policy().copies
            publisher = Publisher(options.identity(), client, options.registries, origin, options.network, copies=copies)
            steps = publisher.publish(project, namespace=namespace, allow_uncovered=allow_uncovered, dry_run=dry_run)
            async for step in steps:
                options.output.say(f"  [green]✓[/] {step.what.replace('-', ' ')}  [dim]{escape(step.said)}[/]")
                for line in _compared_lines(step):
                    options.output.say(f"      {line}")
                done.append(step)
        return done

    steps = run(work())
    uri = steps[-1].uri
    value = {"uri": uri, "hash": project.protocol_hash, "dry_run": dry_run, "steps": [to_builtins(step) for step in steps]}
    lines = [f"[bold]{escape(uri)}[/]", f"hash {project.protocol_hash}"]
    if project.topic:
        # Now, while its publisher can still choose who will speak it.
        lines.append(f"To be elected, it has to be reported by several pairs of agents: treaty topic {escape(project.topic)}")
        lines.append("Its page at this registry has the programs of such a pair, to copy.")
    options.output.result(value, *lines)


def _compared_lines(step: Published) -> Iterator[str]:
    for change in step.changes:
        yield f"{escape(change.name)} {change.change}"
        yield from (f"  {escape(printable(fact, 600))}" for fact in change.facts)
    if step.compatibility is not None:
        yield from verdict_lines(step.compatibility)


def fetch(
    name: Name,
    /,
    *,
    output: Path | None = None,
    publisher: Publishers = (),
    allow_publisher_change: Annotated[bool, Parameter()] = False,
    allow_signer_change: Annotated[bool, Parameter()] = False,
    allow_older_handler: Annotated[bool, Parameter()] = False,
    options: Options = Options(),
) -> None:
    """Download a protocol and its handler, after all ten checks.

    Of a topic it is the elected protocol. The decision of the network, and the votes for it, are shown and are in its proof.

    Parameters
    ----------
    name
        The protocol's URI, or another name that resolves to exactly one: sha256:HEX, a standard's own URI. Or a topic, such as
        commerce/product-info.
    output
        Also write document, wheel, attestation and proofs as files into this folder.
    allow_publisher_change
        Accept that the handlers come from another publisher since the last fetch, or that its domain has another owner.
    allow_signer_change
        Accept that the handlers are signed by another identity, and nothing else.
    allow_older_handler
        Accept an older handler than the registry showed before.
    """
    accept = accepted(signer=allow_signer_change, publisher=allow_publisher_change, older_handler=allow_older_handler)

    async def fetched(fetcher: Fetcher, uri: str) -> VerifiedProtocol:
        return await fetcher.fetch(uri, accept=accept, progress=_narrator(options.output))

    async def work() -> tuple[VerifiedProtocol, TopicView | None]:
        async with Fetcher(options.home, options.policy(*publisher), options.network) as fetcher:
            if not names_topic(name):
                return await fetched(fetcher, name), None
            view, protocols = elected(name, await topic_views(fetcher, name, options.registry or ""))
            for protocol in protocols[:-1]:
                try:
                    return await fetched(fetcher, protocol.uri), view
                except VerificationFailed as error:
                    # Others may publish the same document, with handlers that the policy admits.
                    if error.code != PolicyCode.REFUSED:
                        raise
            return await fetched(fetcher, protocols[-1].uri), view

    verified, view = run(work())
    value = _value(verified)
    lines = [f"[bold]{escape(verified.uri)}[/]", f"hash {verified.hash}"]
    if view is not None:
        value["decision"], reasons = why(verified, view)
        lines += reasons
    if output is not None:
        files = export(verified, output)
        value["files"] = [str(path) for path in files]
        lines.append("\n".join(f"  {escape(str(path))}" for path in files))
    options.output.result(value, *lines, *_coverage_lines(verified, publisher, options), *_warnings(verified))


def verify(subject: Uri, /, *, publisher: Publishers = (), options: Options = Options()) -> None:
    """Check a protocol: a folder offline, by the proofs in it; a URI at its registry, without the local cache.

    Parameters
    ----------
    subject
        A folder that `treaty fetch --output` wrote, a file of `treaty evidence`, or a protocol's URI.
    """
    policy = options.policy(*publisher)
    folder = Path(subject)
    if folder.is_file():
        verify_evidence(folder, options)
        return
    if folder.is_dir():
        verified = verify_directory(folder, options.registries, policy)
        age = f"offline, by proofs that are {verified.age(int(time.time()))} s old; a folder cannot show later events"
    else:
        verified = run(_verify_online(subject, policy, options))
        age = "at its registry, just now"
    lines = (f"[green]✓[/] [bold]{escape(verified.uri)}[/] holds, {age}.", f"hash {verified.hash}")
    options.output.result(_value(verified), *lines, *_coverage_lines(verified, publisher, options), *_warnings(verified))


async def _verify_online(uri: str, policy: Policy, options: Options) -> VerifiedProtocol:
    async with Fetcher(options.home, policy, options.network) as fetcher:
        return await fetcher.fetch(uri, fresh=True, progress=_narrator(options.output))


def _narrator(output: Output) -> Any:
    def narrate(step: Step, sentence: str) -> None:
        output.say(f"  [green]✓[/] {step.value:>2} {step.title:<12} [dim]{escape(sentence)}[/]")

    return narrate


def _value(verified: VerifiedProtocol) -> dict[str, Any]:
    return {
        "uri": verified.uri,
        "hash": verified.hash,
        "topic": verified.topic,
        "author": verified.author,
        "publisher": verified.publisher,
        "tenure": verified.tenure,
        "signer": dataclasses.asdict(verified.signer),
        "handler": {"filename": verified.package.filename, "wheel": verified.package.digest},
        "election": verified.election,
        "coverage": _coverage(verified),
        "checkpoint": {"size": verified.checkpoint.checkpoint.size, "time": verified.checkpoint.time},
        "warnings": list(verified.warnings),
    }


def _coverage(verified: VerifiedProtocol) -> dict[str, int] | None:
    """Return the coverage that the vectors in the package state; None if they cannot be read. They are not replayed here."""
    # Here: they load the schemas' library, and a fetch that fails does not need it.
    from treaty_client.authoring.coverage import measure_coverage
    from treaty_sandbox.vectors import published_vectors

    try:
        vectors = published_vectors(verified.package)
    except TreatyError:
        return None
    covered = measure_coverage(verified.package.manifest, vectors)
    return {"vectors": len(vectors), "outcomes": covered.cells, "reached": covered.cells - len(covered.missed)}


def _coverage_lines(verified: VerifiedProtocol, publishers: tuple[str, ...], options: Options) -> list[str]:
    coverage = _coverage(verified)
    if coverage is None:
        return ["[yellow]![/] Its vectors cannot be read."]
    sentence = f"{coverage['vectors']} vectors, for {coverage['reached']} of {coverage['outcomes']} outcomes"
    # The command needs what this one was given, or it would refuse the handler that this one accepted.
    options_text = [word for publisher in publishers for word in ("--publisher", publisher)]
    options_text += ["--home", str(options.home)] if options.home != default_home() else []
    return [f"{sentence}; replay them: {escape(shlex.join(['treaty', 'test', verified.uri, *options_text]))}"]


def _warnings(verified: VerifiedProtocol) -> list[str]:
    return [f"[yellow]![/] {escape(warning)}" for warning in verified.warnings]
