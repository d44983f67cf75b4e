"""A verified protocol as a folder of files, and its verification again, offline, from nothing else.

document.md                     the protocol document; its SHA-256 is the protocol hash
WHEEL                           the handler package, under its own file name
WHEEL.sigstore.json             the Sigstore bundle that attests it
trusted-root.json               the Sigstore trusted root of the registry, for other tools
protocol.bundle.json            all proofs, as the registry served them (format: `bundle`)
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from treaty_consensus.errors import NotFound, Untrusted
from treaty_consensus.kinds import MAX_WHEEL
from treaty_consensus.protocol import parse_protocol_uri

from . import durable
from .policy import Policy
from .registries.trust import TrustedRegistries, TrustedRegistry
from .store import Lockfile, check_pins, check_status
from .verification.bundle import MAX_BUNDLE, parse_bundle
from .verification.completeness import Answer
from .verification.contradiction import said
from .verification.kept import check_kept
from .verification.protocol import VerifiedProtocol, read_bundle, verify_bundle, verify_handler
from .verification.steps import Step, taking

DOCUMENT = "document.md"
BUNDLE = "protocol.bundle.json"
TRUSTED_ROOT = "trusted-root.json"


def export(verified: VerifiedProtocol, folder: Path) -> list[Path]:
    """Write the files into `folder`, which is made if need be; files of these names are replaced. Returns their paths."""
    wheel = verified.package.filename
    files = {
        DOCUMENT: verified.document,
        wheel: verified.wheel,
        f"{wheel}.sigstore.json": verified.attestation,
        TRUSTED_ROOT: verified.trusted_root,
        BUNDLE: verified.bundle,
    }
    for name, data in files.items():
        durable.write(folder / name, data)
    return [folder / name for name in files]


def verify_directory(folder: Path, registries: TrustedRegistries, policy: Policy) -> VerifiedProtocol:
    """Steps 1 to 9 on what `export` wrote, without a network.

    What no folder can show is whether anything happened since: ask the result for its `age`. What was seen of the registry since
    and what treaty.lock pins are compared, without a network too: a folder that contradicts them, or that was taken back since,
    is refused; what is merely newer is a warning. Raises `VerificationFailed`, and `NotFound` when a file is missing.
    """
    data = _read(folder / BUNDLE, MAX_BUNDLE)
    with taking(Step.RESOLVE):
        uri = parse_protocol_uri(parse_bundle(data).uri)
        # Consistency with checkpoints seen since cannot be proved offline; that this one is signed by the log can.
        registry = dataclasses.replace(registries.get(uri.origin), seen=None)
    proven = verify_bundle(read_bundle(data, uri=str(uri)), uri, registry, policy, now=None)
    with taking(Step.DOCUMENT):
        _same(folder / DOCUMENT, proven.document)
    with taking(Step.WHEEL):
        wheel = _read(folder / proven.handler.body.filename, MAX_WHEEL)
    verified = verify_handler(proven, wheel, policy, bundle=data)
    with taking(Step.ATTESTATION):
        _same(folder / f"{verified.package.filename}.sigstore.json", verified.attestation)
        _same(folder / TRUSTED_ROOT, verified.trusted_root)
    return dataclasses.replace(verified, warnings=(*verified.warnings, *_newer(registries, registry, verified)))


def _newer(registries: TrustedRegistries, registry: TrustedRegistry, verified: VerifiedProtocol) -> list[str]:
    """Compare with what was seen of the registry and locked; what is newer than the folder, as sentences. Raises
    `VerificationFailed`."""
    with taking(Step.LOCK):
        entries = Lockfile(registries.home).read()
        check_pins(entries, registry.name.origin, verified.evidence, is_kept=True)
        check_status(entries, parse_protocol_uri(verified.uri), verified.evidence)
        seen = registries.memory.about(registry.name.origin, Answer(verified.evidence, uri=verified.uri).subjects)
        newer = check_kept(verified, seen, registry.name.key)
    return [f"Since then, at leaf {leaf.index}, {said(leaf.statement)}." for leaf in newer]


def _same(path: Path, proved: bytes) -> None:
    if _read(path, len(proved)) != proved:
        raise Untrusted("directory.changed", f"{path.name} is not what its proofs in {BUNDLE} are for.")


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except FileNotFoundError as error:
        raise NotFound(
            "directory.missing", f"There is no {path.name} in {path.parent}.", fix="Fetch it again: treaty fetch URI --output DIR"
        ) from error
