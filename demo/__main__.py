"""The main job, end to end: `make demo`.

Registry, publisher, shops, buyers and auditor are separate processes with separate homes; what tampers is a proxy on the wire.
Every step checks what it tells: the demo is also the end-to-end test, and ends with another status than 0 when anything is not
as it says.
`--json` prints the steps as one JSON object; `--keep` leaves the temporary folder for a look.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from narration import Narrator
from opening import opening
from processes import DemoFailed
from stage import Stage
from story import DOMAINS, PUBLISHER, Story

FAREWELL = f"""Next: `make run`, a registry of your own that stays up.
{opening(8080)}
README.md goes on from there, to a consensus of three agents of your own. SECURITY.md has the attacks above and their tests."""


def main() -> int:
    """Play the story; the exit status, which is 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the steps as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    arguments = parser.parse_args()
    # The settings of an operator's own registry: its database, its ports, its keys are no part of the story.
    for name in [name for name in os.environ if name.startswith("TREATY_")]:
        del os.environ[name]
    narrator = Narrator(as_json=arguments.json)
    root = Path(tempfile.mkdtemp(prefix="treaty-demo-"))
    root.chmod(0o755)  # the embedded database runs as a user of its own when this is root
    try:
        with Stage(root, (PUBLISHER, *DOMAINS)) as stage:
            Story(stage, narrator).play()
    except DemoFailed as error:
        print(f"\nThe demo failed: {error}\nWhat every actor printed is in {root}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(root, ignore_errors=True)
        return 130
    if not arguments.keep:
        shutil.rmtree(root, ignore_errors=True)
    narrator.close(FAREWELL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
