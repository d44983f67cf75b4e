"""Build open electorates for tests: sixteen anchors, a suffix list of their own, and epochs of any length."""

from __future__ import annotations

from pathlib import Path

import msgspec
from signers import Signer, domain_signer

from treaty_consensus.canonical import hex_digest
from treaty_consensus.election.defaults import open_parameters
from treaty_consensus.kinds import Blob, Parameters
from treaty_registry.operator.parameters import ParametersDraft

ANCHORS = tuple(sorted(f"anchor-{number}.example" for number in range(16)))
SUFFIX_LIST = b"""// ===BEGIN ICANN DOMAINS===
example
com
// ===END ICANN DOMAINS===
// ===BEGIN PRIVATE DOMAINS===
host.example
// ===END PRIVATE DOMAINS===
"""


def anchor(number: int) -> Signer:
    """Return the root DID of an anchor."""
    return domain_signer(ANCHORS[number])


def parameters(epoch_seconds: int = 100) -> Parameters:
    """Return the parameters of an open electorate with anchors that are mature at once."""
    body = open_parameters(ANCHORS, Blob(hex_digest(SUFFIX_LIST), len(SUFFIX_LIST)), epoch_seconds=epoch_seconds)
    assert body.reputation is not None
    return msgspec.structs.replace(body, reputation=msgspec.structs.replace(body.reputation, mature_epochs=1))


def draft(epoch_seconds: int = 100) -> ParametersDraft:
    """Return the same parameters with the suffix list that they name."""
    return ParametersDraft(parameters(epoch_seconds), SUFFIX_LIST)


def write(folder: Path, epoch_seconds: int = 100) -> Path:
    """Write the same parameters as an operator's configuration file; return its path."""
    (folder / "suffixes.dat").write_bytes(SUFFIX_LIST)
    file = folder / "electorate.toml"
    anchors = ", ".join(f'"{host}"' for host in reversed(ANCHORS))
    file.write_text(
        f'electorate = "open"\nepoch_seconds = {epoch_seconds}\n\n'
        f'[reputation]\nanchors = [{anchors}]\nsuffix_list = "suffixes.dat"\nmature_epochs = 1\n'
    )
    return file
