"""The world of the agency on one machine: a registry, eight domains with their web servers, and their agents as processes.

Each agent may run at one of two hosts, `a.DOMAIN` and `b.DOMAIN`. The web server of the domain describes where it runs now. The
stage of the demo makes the registry, the domains and the certificates, and ends every process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import BIN, Actor, free_port
from stage import REGISTRY, Stage

HERE = Path(__file__).parent
TRAVELLER, PLANNER, FLIGHTS, HOTELS, PAYMENTS, RIDES, DRIVERS, AUDITOR = DOMAINS = tuple(
    f"{name}.example" for name in ("traveller", "planner", "flights", "hotels", "payments", "rides", "drivers", "auditor")
)
SERVING = (FLIGHTS, HOTELS, PAYMENTS, RIDES, PLANNER)
PROTOCOLS = ("offers", "booking", "payment", "rides")
# A proof is used for 400 seconds: long runs renew it, and see the handler that was yanked. A clock may be 300 seconds fast.
POLICY = f"""max_age = 400
publishers = ["did:wba:{PLANNER}"]
encryption = "required"
report = true
report_delay = 0
"""
# A restart of an agent may take longer than the default of 30 seconds where many processes share a processor.
# On a busy machine a restart takes longer than the eight attempts that are the default.
CONFIG = """[timeouts]
connect = 60

[peers]
attempts = 16
"""


@dataclass
class World:
    """The agency on a stage. `tell`: called before each step. `wheels`: the handler of each published version by its URI, oldest
    first. `hosts`: where each agent serves, by its domain."""

    stage: Stage
    tell: Callable[[str], None] = print
    wheels: dict[str, str] = field(default_factory=dict)
    actors: dict[str, Actor] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    starts: int = 0

    def __post_init__(self) -> None:
        self.ports = {f"{side}.{domain}": free_port() for domain in DOMAINS for side in "ab"}
        self.certificate, self.key = self.stage.authority.issue("agents", list(self.ports))

    def start(self) -> None:
        """Start the registry, publish the protocols, and start the agents that serve and the auditor."""
        self.tell("A registry and eight domains")
        self.start_registry()
        for domain in DOMAINS:
            self.stage.found(domain)
            (self.stage.home(domain) / "policy.toml").write_text(POLICY)
            (self.stage.home(domain) / "agent.toml").write_text(CONFIG)
        name = self._registry_name()
        self.stage.each(lambda domain: self.stage.treaty(domain, "trust", "add", name), DOMAINS)
        for protocol in PROTOCOLS:
            self.publish(HERE / "protocols" / protocol)
        self.tell("Seven agents, and ten drivers in a process")
        for domain in SERVING:
            self.start_agent(domain)
        for domain in SERVING:
            self.wait(domain)
        for domain in (DRIVERS, AUDITOR):
            self.start_agent(domain)

    def publish(self, project: Path) -> str:
        """Publish a protocol in the name of the planner, for agents that are started from now on. Return its URI."""
        done = self.stage.treaty(PLANNER, "publish", str(project))
        uri = str(done["uri"])
        self.tell(f"Published {uri}")
        self.wheels[uri] = next(step["digest"] for step in done["steps"] if step["what"] == "attached")
        return uri

    def start_agent(self, domain: str, *arguments: str, side: str = "", environment: Mapping[str, str] | None = None) -> Actor:
        """Start an agent at its host, or at that of a `side`. `environment`: further variables."""
        host = f"{side}.{domain}" if side else self.hosts.get(domain, f"a.{domain}")
        self.hosts[domain] = host
        options = {"home": self.stage.home(domain), "host": host, "port": self.ports[host]}
        options |= {"certificate": self.certificate, "key": self.key}
        variables = {"PYTHONPATH": str(HERE.parent), **(environment or {})}
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, "-m"]
        command += [
            f"agency.{domain.partition('.')[0]}",
            *(part for name, value in options.items() for part in (f"--{name}", str(value))),
        ]
        resolve = [f"{other}=127.0.0.1:{port}" for other, port in self.ports.items()]
        return self._start(domain, [*command, "--protocols", *self.wheels, *arguments], resolve)

    def wait(self, domain: str) -> None:
        """Wait until an agent serves, and let the web server of its domain describe it."""
        port, actor = self.ports[self.hosts[domain]], self.actors[domain]
        actor.wait_until(lambda: any(f"Listening on 127.0.0.1, port {port}" in line for line in actor.printed()))
        self.stage.web.agents[domain] = port

    def start_registry(self) -> None:
        """Start the registry on its log."""
        stage, port = self.stage, self.stage.ports["registry"]
        # At the first start: it is started again on its log.
        new = [] if (stage.root / "registry" / "keys").exists() else ["--new"]
        if not (stage.root / "registry.pem").exists():
            stage.authority.issue("registry", [REGISTRY])
        command = ["serve", *new, "--json", "--data", str(stage.root / "registry"), "--port", str(port), "--origin", REGISTRY]
        command += ["--tls-cert", str(stage.root / "registry.pem"), "--tls-key", str(stage.root / "registry.key")]
        command += [f"--resolve={domain}=127.0.0.1:{stage.ports['domains']}" for domain in DOMAINS]
        command += ["--ca", str(stage.authority.certificate)]
        self._start(REGISTRY, [str(BIN / "treaty-registry"), *command])

    def _start(self, name: str, command: Sequence[str], resolve: Sequence[str] = ()) -> Actor:
        """Start a process with a log of its own, in the place of the one before."""
        self.starts += 1
        self.actors[name] = self.stage.start(f"{self.starts:02}-{name}", *command, resolve=resolve)
        return self.actors[name]

    def _registry_name(self) -> str:
        """Wait until the registry listens, and return its name."""
        registry = self.actors[REGISTRY]

        def names() -> list[str]:
            return [json.loads(line)["name"] for line in registry.printed() if line.startswith('{"origin"')]

        registry.wait_until(lambda: bool(names()))
        return names()[-1]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of JSON lines."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]
