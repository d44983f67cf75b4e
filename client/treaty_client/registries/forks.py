"""Where proofs go that a log signed two histories (`treaty_consensus.log.equivocation`): HOME/evidence/

    ORIGIN-HEX.equivocation.json       ORIGIN with "_" for ":", HEX = the first 16 digits of the file's SHA-256

The same proof found again is the same file; no file is ever replaced or deleted.
"""

from __future__ import annotations

from pathlib import Path

from treaty_consensus.canonical import hex_digest
from treaty_consensus.log.equivocation import SUFFIX, Equivocation

from .. import durable


def keep(folder: Path, proof: Equivocation) -> Path:
    """Write a proof into a folder; where it is. Durable when it returns; raises OSError."""
    data = proof.format()
    path = folder / f"{proof.key.name.replace(':', '_')}-{hex_digest(data)[:16]}{SUFFIX}"
    if not path.exists():
        durable.write(path, data)
    return path
