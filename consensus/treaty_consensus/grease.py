"""Name a thing that means nothing, for the places where readers pass over unknown names (GREASE, RFC 8701).

It is another one in each release, so that no reader comes to know it, and the same on all nodes of a registry. Specification:
`docs/specification/compatibility.md`.
"""

from __future__ import annotations

import hashlib
from typing import Final

from . import __version__

GREASE: Final = f"grease.{hashlib.sha256(__version__.encode()).hexdigest()[:8]}"
