"""Export a verified protocol to a folder, and verify such a folder offline.

document.md                     the protocol document; its SHA-256 is the protocol hash
WHEEL                           the handler package, under its own file name
WHEEL.sigstore.json             the Sigstore bundle that attests it
trusted-root.json               the Sigstore trusted root of the registry, for other tools
protocol.bundle.json            all proofs, as the registry served them (docs/specification/bundles.md)
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import NotFound, Refused, TreatyError, Untrusted
from treaty_consensus.kinds import MAX_WHEEL
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io import durable
from treaty_io.codes import DirectoryCode

from ..policy import Policy
from ..registries.bundle import MAX_BUNDLE, parse_bundle
from ..registries.trust import TrustedRegistries, TrustedRegistry
from .oci import read_layout
from .store import Lockfile
from .verification.completeness import RegistryAnswer
from .verification.contradiction import said
from .verification.records import ProvenProtocol, VerifiedProtocol
from .verification.steps import Step, taking
from .verification.ten_steps import check_kept, check_lock, read_bundle, verify_bundle, verify_handler

DOCUMENT = "document.md"
BUNDLE = "protocol.bundle.json"
TRUSTED_ROOT = "trusted-root.json"


def export(verified: VerifiedProtocol, folder: Path) -> list[Path]:
    """Write the files into `folder` and return their paths. The folder is created; an export of the same protocol is replaced.

    Raises `Refused` (`system.exists`) if the folder holds another document, of an author or of another protocol. Then nothing
    is written.
    """
    _check_free(folder, verified)
    wheel = verified.package.filename
    files = {
        DOCUMENT: verified.document,
        wheel: verified.wheel,
        f"{wheel}.sigstore.json": verified.attestation,
        TRUSTED_ROOT: verified.trusted_root,
        BUNDLE: verified.bundle,
    }
    # The proofs are last: a new folder that a crash cut short lacks them, and is refused.
    for name, data in files.items():
        durable.write(folder / name, data)
    return [folder / name for name in files]


def verify_directory(folder: Path, registries: TrustedRegistries, policy: Policy) -> VerifiedProtocol:
    """Take steps 1 to 9 on a folder that `export` wrote, without network.

    The folder is also compared with the leaves seen of the registry since, and with treaty.lock. If they contradict it or take it
    back, it is refused; leaves that are merely newer become warnings. Newer leaves that this machine has not seen stay unknown:
    ask the result for its `age`. Raises `VerificationFailed`, and `NotFound` if a file is missing.
    """
    data = _read(folder / BUNDLE, MAX_BUNDLE)
    proven, registry = _prove(data, registries, policy)
    # The files beside the bundle are for other tools; they must be equal to the proven bytes.
    with taking(Step.DOCUMENT):
        _same(folder / DOCUMENT, proven.document)
    with taking(Step.WHEEL):
        wheel = _read(folder / proven.handler.body.filename, MAX_WHEEL)
    verified = verify_handler(proven, wheel, policy, bundle=data)
    with taking(Step.ATTESTATION):
        _same(folder / f"{verified.package.filename}.sigstore.json", verified.attestation)
        _same(folder / TRUSTED_ROOT, verified.trusted_root)
    return _with_newer(registries, registry, verified)


def verify_layout(folder: Path, registries: TrustedRegistries, policy: Policy) -> VerifiedProtocol:
    """Verify an OCI image layout that `oci.write_layout` wrote, as `verify_directory` does a folder. Raises as `oci.read_layout`
    too."""
    parts = read_layout(folder)
    proven, registry = _prove(parts.bundle, registries, policy)
    return _with_newer(registries, registry, verify_handler(proven, parts.wheel, policy, bundle=parts.bundle))


def _prove(data: bytes, registries: TrustedRegistries, policy: Policy) -> tuple[ProvenProtocol, TrustedRegistry]:
    """Take steps 1 to 6 with a bundle of a file."""
    with taking(Step.RESOLVE):
        uri = parse_protocol_uri(parse_bundle(data).uri)
        # Without `seen`, because consistency with newer checkpoints cannot be proved offline. The log's signature can.
        registry = dataclasses.replace(registries.get(uri.origin), seen=None)
    # No `now`: a folder is used long after it was written. Its age is in the result.
    return verify_bundle(read_bundle(data, uri=str(uri)), uri, registry, policy, now=None), registry


def _check_free(folder: Path, verified: VerifiedProtocol) -> None:
    try:
        # The document is written first, so it tells what the folder is also after a crash.
        if _read(folder / DOCUMENT, len(verified.document)) == verified.document:
            return
    except NotFound:
        return
    with suppress(TreatyError):
        if parse_bundle(_read(folder / BUNDLE, MAX_BUNDLE)).uri == verified.uri:
            return  # an export whose document was changed
    raise Refused(
        SystemCode.EXISTS, f"{folder} holds another {DOCUMENT}.", fix="Name a folder of its own: treaty fetch URI --output DIR"
    )


def _with_newer(registries: TrustedRegistries, registry: TrustedRegistry, verified: VerifiedProtocol) -> VerifiedProtocol:
    """Compare a protocol from files with the leaves seen and the lock, and add newer leaves as warnings. Raises
    `VerificationFailed`."""
    with taking(Step.LOCK):
        entries = Lockfile(registries.home).read()
        check_lock(entries, registry.name.origin, verified.evidence, parse_protocol_uri(verified.uri), is_kept=True)
        seen = registries.memory.about(registry.name.origin, RegistryAnswer(verified.evidence, uri=verified.uri).subjects)
        newer = check_kept(verified, seen, registry.keys)
    sentences = [f"Since then, at leaf {leaf.index}, {said(leaf.statement)}." for leaf in newer]
    return dataclasses.replace(verified, warnings=(*verified.warnings, *sentences))


def _same(path: Path, proved: bytes) -> None:
    if _read(path, len(proved)) != proved:
        raise Untrusted(DirectoryCode.CHANGED, f"{path.name} differs from the file that {BUNDLE} proves.")


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            # One byte more than the limit makes a larger file differ, without reading all of it.
            return file.read(limit + 1)
    except FileNotFoundError as error:
        raise NotFound(
            DirectoryCode.CHANGED,
            f"There is no {path.name} in {path.parent}.",
            fix="Fetch it again: treaty fetch URI --output DIR",
        ) from error
