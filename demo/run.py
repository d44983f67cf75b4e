"""`make run`: a registry on loopback that stays up, with the first-party catalogue and three domains for your agents.

    python demo/run.py [--port 8080] [--web-port 8443] [--data .treaty-registry] [--witness URL#KEY]

Everything is below DATA. The catalogue is published by a did:key that is kept in DATA/catalogue; protocols that are published
already are left as they are, so that the next run continues the same log. The domains exist only here: a web server on WEB-PORT
serves DATA/domains/NAME/did.json for each, with a certificate of an authority that each run makes anew. The registry looks these
domains up there, and agents do so with the environment that DATA/environment sets. Ctrl-C or SIGTERM stops everything.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from opening import opening
from processes import BIN, ROOT, Actor, DemoFailed, accepts, build_wheels, is_free

from treaty_io import durable
from treaty_registry.pages.documentation import ARCHIVE

CATALOGUE = ROOT / "protocols"
DOMAINS = ("alice.example", "bob.example", "carol.example")


def main() -> int:
    """Serve until interrupted or terminated; the server's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--web-port", type=int, default=8443)
    parser.add_argument("--data", type=Path, default=Path(".treaty-registry"))
    parser.add_argument("--witness", action="append", default=[], metavar="URL#KEY")
    arguments = parser.parse_args()
    # SIGTERM goes to this process alone, and by default it would end at once and leave the registry running. SIGINT stays as it
    # was inherited: a shell that starts this in the background has it ignored.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _check_ports(arguments.port, arguments.web_port)
        with _alone(arguments.data):
            return _run(arguments.port, arguments.web_port, arguments.data, arguments.witness)
    except DemoFailed as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _check_ports(*ports: int) -> None:
    """Raise `DemoFailed` when one of the ports is taken. Nothing is started or written before."""
    for port in ports:
        if not is_free(port):
            raise DemoFailed(
                f"Port {port} is taken, perhaps by another `make run`. Stop that program, or choose other ports and another "
                "folder: .venv/bin/python demo/run.py --port 8090 --web-port 8453 --data .treaty-registry-2"
            )


def _run(port: int, web_port: int, data: Path, witnesses: list[str]) -> int:
    print(f"A registry of your own, in {data}:\n{opening(port)}", flush=True)
    (data / "local").mkdir(parents=True, exist_ok=True)
    build_wheels(data / "wheels")
    command = [str(BIN / "treaty-registry"), "serve", "--data", str(data), "--port", str(port), "--wheels", str(data / "wheels")]
    if not (data / "keys").exists():
        command.append("--new")
    command += [f"--resolve={domain}=127.0.0.1:{web_port}" for domain in DOMAINS]
    command += ["--ca", str(data / "local" / "demo-ca.pem")]
    command += [part for witness in witnesses for part in ("--witness", witness)]
    with _domains(data, web_port), _running(Actor.start("the registry", command)) as registry:
        _tell_progress(registry, data, port)
        _publish_catalogue(f"http://127.0.0.1:{port}", data / "catalogue")
        _say_farewell(port, data)
        return registry.process.wait()


@contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Hold the lock of the folder. The kernel frees it when this process ends in any way. Raises `DemoFailed`."""
    with ExitStack() as held:
        try:
            held.enter_context(durable.exclusive(data / "run.lock", wait=False))
        except BlockingIOError as error:
            raise DemoFailed(f"Another `make run` uses {data}. Stop it first.") from error
        yield


@contextmanager
def _running(registry: Actor) -> Iterator[Actor]:
    """End the registry, and with it its database, when the block ends."""
    try:
        yield registry
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a second one must not leave the registry running
        registry.terminate()
        registry.end()


@contextmanager
def _domains(data: Path, port: int) -> Iterator[None]:
    """Serve the documents of the local domains, and write the environment in which agents find them."""
    from authority import DemoAuthority  # imported here: slow, and the first line must come before
    from domains import DomainServer

    from treaty_io.home import CA_VARIABLE, RESOLVE_VARIABLE

    for domain in DOMAINS:
        (data / "domains" / domain).mkdir(parents=True, exist_ok=True)
    authority = DemoAuthority(data / "local")
    resolve = " ".join(f"{domain}=127.0.0.1:{port}" for domain in DOMAINS)
    settings = {RESOLVE_VARIABLE: resolve, CA_VARIABLE: str(authority.certificate.resolve())}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in settings.items()]
    (data / "environment").write_text("".join(lines))
    with DomainServer(port, data / "domains", DOMAINS, authority).running():
        print(f"  ✓ a web server for {', '.join(DOMAINS)} at https://127.0.0.1:{port}", flush=True)
        yield


def _tell_progress(registry: Actor, data: Path, port: int) -> None:
    """Print each phase of the start of the registry as it begins, until it listens. Raises `DemoFailed` when it ends."""
    # PostgreSQL writes this file when it starts as a server for the first time.
    made = (data / "postgres" / "postmaster.opts").exists
    phases: list[tuple[str, Callable[[], bool]]] = [
        ("the registry makes its database, only this time", made),
        ("the registry starts its database and opens its log", lambda: accepts(port)),
    ]
    for phase, done in phases:
        if not done():
            print(f"  … {phase}", flush=True)
        registry.wait_until(done)


def _publish_catalogue(url: str, home: Path) -> None:
    """Publish every protocol of the catalogue in the name of the identity in `home`, which is made if need be."""
    if not (home / "identity.json").exists():
        _treaty(home, "identity", "new")
        _treaty(home, "trust", "add", url, "--yes")
    print("The catalogue", flush=True)
    for project in sorted(CATALOGUE.glob("*/*/protocol.toml")):
        print(f"  ✓ {_treaty(home, 'publish', str(project.parent))['uri']}", flush=True)
    publisher = _treaty(home, "identity", "show")["did"]
    print(f"  Let an agent run their handlers: treaty policy allow {publisher} --home HOME", flush=True)


def _say_farewell(port: int, data: Path) -> None:
    documentation = "docs/" if ARCHIVE.is_file() else "docs/, once `make site` has built it and the registry is started again"
    print(
        f"""The registry is ready: http://127.0.0.1:{port}/
  Its documentation: http://127.0.0.1:{port}/{documentation}
Domains for your agents: {", ".join(DOMAINS)}
  They exist only here. In each shell of an agent, first say where they are:
    . {data / "environment"}
  Then make an identity, with its document where the web server looks for it:
    treaty identity new {DOMAINS[0]} --document {data / "domains" / DOMAINS[0] / "did.json"}
README.md goes on from here, in another shell. Ctrl-C stops the registry.""",
        flush=True,
    )


def _treaty(home: Path, *arguments: str) -> dict[str, str]:
    command = [str(BIN / "treaty"), *arguments, "--home", str(home), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoFailed(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    value: dict[str, str] = json.loads(done.stdout)
    return value


if __name__ == "__main__":
    sys.exit(main())
