"""The stage: folders, ports and processes of the demo, and the way every actor finds the others.

Every agent is an operating-system process with a home of its own below one temporary folder. Hosts such as `shop.example` exist
only here: $TREATY_RESOLVE and $TREATY_CA tell each actor their addresses and the demo CA. Closing the stage ends every process
that it started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from authority import DemoAuthority
from domains import DomainServer
from processes import BIN, Actor, DemoFailed, free_port

from treaty_io.home import CA_VARIABLE, RESOLVE_VARIABLE
from treaty_io.identity import Identity

REGISTRY = "registry.example"
HERE = Path(__file__).parent
_COMMAND_SECONDS = 300  # for one command on a very busy machine; more means that it hangs

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass
class Stage:
    """One temporary world. `domains`: every DID's domain. Use as a context manager."""

    root: Path
    domains: Sequence[str]
    _actors: list[Actor] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.authority = DemoAuthority(self.root)
        self.ports = {name: free_port() for name in ("registry", "wheel", "statement", "fork")}

    def __enter__(self) -> Self:
        self.web = DomainServer(0, self.root / "domains", self.domains, self.authority)
        self.ports["domains"] = self._stack.enter_context(self.web.running())
        # Commands are waited for when the stage closes, so that none outlives the folder.
        self._pool = self._stack.enter_context(ThreadPoolExecutor(os.cpu_count()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
        for actor in reversed(self._actors):
            actor.terminate()
        for actor in reversed(self._actors):
            actor.end()
        self._stack.close()

    def network(self, registry: str = "registry") -> dict[str, str]:
        """Return the environment of an actor that reaches the registry through that port: the registry or a liar."""
        hosts = {REGISTRY: self.ports[registry], **dict.fromkeys(self.domains, self.ports["domains"])}
        resolve = " ".join(f"{host}=127.0.0.1:{port}" for host, port in hosts.items())
        return {RESOLVE_VARIABLE: resolve, CA_VARIABLE: str(self.authority.certificate)}

    def home(self, name: str) -> Path:
        """Return the home of an actor, which is made if need be."""
        home = self.root / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def found(self, domain: str) -> Identity:
        """Make a domain: a did:wba with its key in a home of its own, and its document on the domain's web server."""
        identity = Identity.create(domain)
        identity.save(self.home(domain) / "identity.json")
        folder = self.root / "domains" / domain
        folder.mkdir(parents=True)
        (folder / "did.json").write_text(json.dumps(identity.did_document()))
        return identity

    def start(self, name: str, *command: str, resolve: Sequence[str] = ()) -> Actor:
        """Start an actor; its output goes to ROOT/NAME.log. `resolve`: HOST=IP:PORT beyond those that all know."""
        network = self.network()
        network[RESOLVE_VARIABLE] = " ".join([network[RESOLVE_VARIABLE], *resolve])
        actor = Actor.start(name, command, log=self.root / f"{name}.log", folder=self.root, environment=network)
        self._actors.append(actor)
        return actor

    def start_script(self, name: str, script: str, *arguments: str, resolve: Sequence[str] = ()) -> Actor:
        """Start one of this folder's scripts."""
        return self.start(name, sys.executable, str(HERE / script), *arguments, resolve=resolve)

    def treaty(self, home: str, *arguments: str, via: str = "registry", refused: bool = False) -> dict[str, Any]:
        """Run `treaty … --json` in the home of an actor and return its output. With `refused` it must fail, and the error
        returns."""
        command = [str(BIN / "treaty"), *arguments, "--home", str(self.home(home)), "--json"]
        environment = {**os.environ, **self.network(via)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS, env=environment)
        if (done.returncode != 0) != refused or not done.stdout.strip():
            raise DemoFailed(f"{' '.join(command)}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
        value: dict[str, Any] = json.loads(done.stdout)
        return value

    def each(self, work: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """Do `work` for each item, as many at once as there are processors. Returns the results in the order of the items."""
        return list(self._pool.map(work, items))

    def submit(self, work: Callable[[], _R]) -> Future[_R]:
        """Begin `work` in the background, when a processor is free."""
        return self._pool.submit(work)
