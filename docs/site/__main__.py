"""`python -m docs.site [ARCHIVE]`: build the site. Without a path it is put where the registry finds it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from .archive import ARCHIVE, SiteError, build
from .staging import LinkError


def main(arguments: list[str]) -> int:
    """The exit status: 1 when the site has a fault."""
    archive = Path(arguments[0]) if arguments else ARCHIVE
    begun = time.monotonic()
    try:
        is_new = build(archive)
    except (SiteError, LinkError) as error:
        print(error, file=sys.stderr)
        return 1
    if not is_new:
        print(f"{archive} is of these sources already.")
        return 0
    print(f"{archive}: {archive.stat().st_size / 1024:.0f} KiB, in {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
