"""`make run`: a registry on loopback that stays up, with the first-party catalogue published in it.

    python demo/run.py [--port 8080] [--data .treaty-registry] [--witness URL#KEY]

The catalogue is published by a did:key that is kept in DATA; what is published already is left as it is, so that the next run
goes on with the same log. Ctrl-C or SIGTERM stops it, and the registry with it.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from stage import BIN, DemoFailed, wait_until_ready

CATALOGUE = Path(__file__).parent.parent / "protocols"


def main() -> int:
    """Serve until interrupted or terminated; the server's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--data", type=Path, default=Path(".treaty-registry"))
    parser.add_argument("--witness", action="append", default=[], metavar="URL#KEY")
    arguments = parser.parse_args()
    url = f"http://127.0.0.1:{arguments.port}"
    command = [str(BIN / "treaty-registry"), "serve", "--data", str(arguments.data), "--port", str(arguments.port)]
    command += [part for witness in arguments.witness for part in ("--witness", witness)]
    # SIGTERM goes to this process alone, and by default it would end at once and leave the registry running. SIGINT stays as it
    # was inherited: a shell that starts this in the background has it ignored.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = subprocess.Popen(command)
    try:
        wait_until_ready(f"{url}/health/ready", server)
        publish_catalogue(url, arguments.data / "catalogue")
        return server.wait()
    except DemoFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not leave the registry running
        server.terminate()
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()


def publish_catalogue(url: str, home: Path) -> None:
    """Publish every protocol of the catalogue in the name of the identity in `home`, which is made if need be."""
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    if not (home / "identity.json").exists():
        _treaty(home, "identity", "new")
        _treaty(home, "trust", "add", url, "--yes")
    console.print("\n[bold]The catalogue[/]")
    publisher = _treaty(home, "identity", "show")["did"]
    for project in sorted(CATALOGUE.glob("*/*/protocol.toml")):
        console.print(f"  [green]✓[/] {_treaty(home, 'publish', str(project.parent))['uri']}")
    console.print(f"\nIts handlers are by [bold]{publisher}[/]: name it with --publisher to run them.")
    console.print("README.md goes on from here, in another shell. Ctrl-C stops the registry.")


def _treaty(home: Path, *arguments: str) -> dict[str, str]:
    command = [str(BIN / "treaty"), *arguments, "--home", str(home), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoFailed(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    value: dict[str, str] = json.loads(done.stdout)
    return value


if __name__ == "__main__":
    sys.exit(main())
