"""Replay a log in the current interpreter. Needs only the consensus package:

    python recompute.py FOLDER

FOLDER/leaves has a leaf a line, base64; the other files are blobs, named by their SHA-256. Prints JSON: the root, and for
every topic of the open epoch the digests of the decision, transcript and roll that would close it. All logged decisions were
compared with recomputed ones before.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import msgspec

from treaty_consensus import canonical
from treaty_consensus.audit import Replay


def recompute(folder: Path) -> str:
    """Return the output of the script."""
    replay = Replay(lambda sha256: (folder / sha256).read_bytes())
    for line in (folder / "leaves").read_text().split():
        replay.append(base64.b64decode(line))
    due = [(canonical.dumps(msgspec.to_builtins(next_.decision)), next_.transcript, next_.roll) for next_ in replay.decide()]
    state = {"root": replay.root().hex(), "due": [[canonical.hex_digest(data) for data in batch] for batch in due]}
    return canonical.dumps(state).decode()


if __name__ == "__main__":
    print(recompute(Path(sys.argv[1])))
