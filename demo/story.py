"""The story the demo tells, act by act. Each step does one thing with real processes, and checks what came of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from narration import Narrator
from processes import BIN, Actor, DemoFailed, build_wheels, free_port
from stage import REGISTRY, Stage

from treaty_registry.log.fence import create_fence

PUBLISHER = "catalogue.example"
SHOP, BUYER, MARKET, COURIER, STUDIO = DOMAINS = (
    "shop.example",
    "buyer.example",
    "market.example",
    "courier.example",
    "studio.example",
)
TOPIC = "commerce/product-info"
HAGGLING = "commerce/haggling"
ROOT = Path(__file__).parent.parent
PROJECT, CODE_PROJECT = ROOT / "protocols" / "product-info", ROOT / "examples" / "haggling"
LAPTOP = (TOPIC, "getProductInfo", {"productId": "P12345"})
MISSING = (TOPIC, "getProductInfo", {"productId": "P99999"})
LAMP = (HAGGLING, "buy", {"item": "lamp", "offer": 1000, "limit": 1800})
EXPECTED_STATES = ["candidate", "provisional", "consensus"]


class Attack(NamedTuple):
    """What the narrator says about an attack, and the step that must refuse it."""

    title: str
    step: int


ATTACKS = {
    "wheel": Attack("A byte of the handler is changed on the way", 7),
    "statement": Attack("The publish statement is forged on the way", 3),
    "fork": Attack("The registry shows a forked log, signed by its own key", 2),
}


def check(holds: bool, what: str) -> None:
    """The story goes on only while it is true."""
    if not holds:
        raise DemoFailed(what)


@dataclass
class Story:
    """The acts, in order. Later acts use the results of earlier ones."""

    stage: Stage
    narrator: Narrator
    registry: str = ""
    uris: list[str] = field(default_factory=list)
    """The versions of product-info, oldest first."""
    haggling: str = ""
    ports: dict[str, int] = field(default_factory=dict)
    _liars: dict[str, Actor] = field(default_factory=dict)
    _prepared: dict[str, Future[None]] = field(default_factory=dict)
    _again: Actor = field(init=False)

    def play(self) -> None:
        """All acts."""
        self.set_the_stage()
        self.start_liars()
        self.publish()
        self.strangers_meet()
        self.others_meet()
        self.vote_and_decide()
        self.audit()
        self.meet_again()
        self.attacks()

    # Act 0

    def set_the_stage(self) -> None:
        """A registry with PostgreSQL inside, and six domains with their DID documents."""
        self.narrator.act("The stage")
        stage = self.stage
        with self.narrator.step("Six agents make identities on six domains, and serve their DID documents over HTTPS") as step:
            for domain in (PUBLISHER, *DOMAINS):
                step.say(stage.found(domain).did)
        with self.narrator.step(f"A registry starts at https://{REGISTRY}, with an embedded PostgreSQL and an empty log") as step:
            build_wheels(stage.root / "wheels")
            registry = self._start_registry("registry", stage.root / "registry", "--wheels", str(stage.root / "wheels"))
            self.registry = self._name_of(registry)
            step.say(f"its name is {self.registry}")
        with self.narrator.step("Each agent trusts that registry by its key"):
            stage.each(lambda domain: stage.treaty(domain, "trust", "add", self.registry), (PUBLISHER, *DOMAINS))

    def _start_registry(self, port_name: str, data: Path, *options: str) -> Actor:
        stage, port = self.stage, self.stage.ports[port_name]
        certificate, key = stage.authority.issue(port_name, [REGISTRY])
        command = ["serve", "--new", "--json", "--data", str(data), "--port", str(port), "--origin", REGISTRY]
        tls = ["--tls-cert", str(certificate), "--tls-key", str(key)]
        hosts = [f"--resolve={domain}=127.0.0.1:{stage.ports['domains']}" for domain in stage.domains]
        authority = ["--ca", str(stage.authority.certificate)]
        return stage.start(port_name, str(BIN / "treaty-registry"), *command, *tls, *hosts, *authority, *options)

    def _name_of(self, registry: Actor) -> str:
        """Wait until the registry listens, and return the name that it tells its operator."""
        lines: list[str] = []

        def told() -> bool:
            lines[:] = [line for line in registry.printed() if line.startswith('{"origin"')]
            return bool(lines)

        registry.wait_until(told)
        return str(json.loads(lines[0])["name"])

    # Act 1

    def publish(self) -> None:
        """Two versions of a protocol without code, and a protocol with code."""
        self.narrator.act("1  Publish, once")
        for version in ("1.0", "1.1"):
            title = f"{PUBLISHER} publishes product-info {version}: a document, and message forms instead of code"
            self.uris.append(self._publish(title, PROJECT / version))
        title = f"{PUBLISHER} publishes haggling: a document, and a handler with code"
        self.haggling = self._publish(title, CODE_PROJECT)

    def _publish(self, title: str, project: Path) -> str:
        with self.narrator.step(title) as step:
            done = self.stage.treaty(PUBLISHER, "publish", str(project))
            for part in done["steps"]:
                step.say(f"{part['what']}: {part['said']}")
        return str(done["uri"])

    # Act 2

    def strangers_meet(self) -> None:
        """A shop and a buyer that know nothing of each other but an address and a topic."""
        self.narrator.act("2  Two strangers meet")
        with self.narrator.step(f"{SHOP} and {MARKET} open: each fetches the handlers it provides, and verifies them"):
            shops = {shop: self._open_shop(shop) for shop in (SHOP, MARKET)}
            for shop, actor in shops.items():
                actor.listens(self.ports[shop])
        store = self.stage.home(BUYER) / "store"
        check(not store.exists(), "the buyer's store must be empty")
        calls = self._start_buyer(BUYER, SHOP, LAPTOP, MISSING, LAMP)
        with self.narrator.step(f"{BUYER} connects by topic, downloads, verifies, and asks for P12345 and P99999") as step:
            told, haggled = _outcomes(calls)
            hit, miss = told["answers"]
            check(hit["price"] == 1299.99, f"P12345 must be found, not {hit}")
            check(miss["status"] == 404, f"P99999 must not be found, not {miss}")
            check(told["protocol"] in self.uris and not told["resumed"], "the first meeting agrees on a published protocol")
            step.say(f"agreed on {told['protocol']}, with no language model; it has no code to run")
            step.say(f"P12345 is a {hit['productName']} for {hit['price']} {hit['currency']}")
            step.say(f"P99999: {miss['status']} {miss['message']}")
            step.say(_timeline(told))
        with self.narrator.step("The same for haggling: both run the downloaded code, each in a sandbox") as step:
            (price,) = haggled["answers"]
            check(haggled["protocol"] == self.haggling, "the second session speaks haggling")
            check(
                LAMP[2]["offer"] <= price <= LAMP[2]["limit"], f"they must meet between the offer and the limit, not at {price}"
            )
            step.say(f"agreed on {haggled['protocol']}")
            step.say(f"offers and counter-offers from {LAMP[2]['offer']} and 2000 ended at {price} cents")
            step.say(_timeline(haggled))

    def _open_shop(self, domain: str) -> Actor:
        port = self.ports[domain] = free_port()
        protocols = [part for uri in (*reversed(self.uris), self.haggling) for part in ("--protocol", uri)]
        return self.stage.start_script(domain, "agents.py", "shop", "--port", str(port), *protocols, *self._agent(domain))

    def _start_buyer(self, buyer: str, shop: str, *calls: tuple[str, str, dict[str, Any]]) -> Actor:
        asked = [part for topic, name, values in calls for part in ("--call", topic, name, json.dumps(values))]
        url = ["--url", f"ws://agent.{shop}:{self.ports[shop]}"]
        address = f"agent.{shop}=127.0.0.1:{self.ports[shop]}"
        return self.stage.start_script(buyer, "agents.py", "buyer", *url, *asked, *self._agent(buyer), resolve=[address])

    def _agent(self, domain: str) -> list[str]:
        home = ["--home", str(self.stage.home(domain)), "--registry", self.registry]
        return [*home, "--publisher", f"did:wba:{PUBLISHER}"]

    # Act 3

    def others_meet(self) -> None:
        """More pairs of domains, each reporting with two signatures."""
        self.narrator.act("3  Tell")
        pairs = ((COURIER, MARKET), (STUDIO, SHOP), (BUYER, MARKET))
        # All at once, to save time: each has a home of its own.
        started = [(buyer, shop, self._start_buyer(buyer, shop, LAPTOP)) for buyer, shop in pairs]
        for buyer, shop, actor in started:
            with self.narrator.step(f"{buyer} buys at {shop}; both sign a report that it worked") as step:
                (told,) = _outcomes(actor)
                names = [name for name, _ in told["timeline"]]
                check("reported" in names, f"{buyer} must have reported: {names}")
                step.say(_timeline(told))

    # Act 4

    def vote_and_decide(self) -> None:
        """Five ballots; epochs are closed by hand until there is a consensus."""
        self.narrator.act("4  Agree")
        older, newer = self.uris
        with self.narrator.step("Five agents vote: four for 1.1 first, one for 1.0") as step:
            tiers = {domain: (older, newer) if domain == COURIER else (newer, older) for domain in DOMAINS}
            ballots = self.stage.each(lambda domain: self.stage.treaty(domain, "vote", TOPIC, *tiers[domain]), DOMAINS)
            for domain, ballot in zip(DOMAINS, ballots, strict=True):
                step.say(f"{domain}: leaf {ballot['index']} in epoch {ballot['epoch']}")
        self._prepare_liars()
        for epoch, expected in enumerate(EXPECTED_STATES):
            with self.narrator.step(f"Epoch {epoch} closes: 1.1 becomes {expected}"):
                self._decide()
                topic = self.stage.treaty(BUYER, "topic", TOPIC)
                states = {protocol["uri"]: protocol["state"] for protocol in topic["protocols"]}
                check(states[newer] == expected, f"epoch {epoch}: expected {expected}, got {states}")
                check(topic["decided_epoch"] == epoch, f"epoch {epoch} must be the decided one")

    def _decide(self) -> None:
        command = [str(BIN / "treaty-registry"), "decide", "--data", str(self.stage.root / "registry"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        check(done.returncode == 0, f"decide failed: {done.stdout}{done.stderr}")

    # Act 5

    def audit(self) -> None:
        """Someone who has nothing but the log's URL and key."""
        self.narrator.act("5  Anyone checks")
        self._again = self._start_buyer(BUYER, SHOP, LAPTOP)  # of the next act; its process starts meanwhile
        with self.narrator.step("An auditor mirrors the log, checks every signature, and recomputes every decision") as step:
            report = self.stage.treaty("auditor", "audit", self.registry)
            check(len(report["decisions"]) == len(EXPECTED_STATES), "every decision must be recomputed")
            check(report["decisions"][-1]["consensus"] is not None, "the last decision must be a consensus")
            step.say(
                f"{report['size']} leaves, root {report['root'][:16]}…, {len(report['decisions'])} decisions to the same bytes"
            )

    # Act 6

    def meet_again(self) -> None:
        """The first pair, once more."""
        self.narrator.act("6  Meet again")
        with self.narrator.step(
            f"{BUYER} and {SHOP} reconnect: a known hash, the first call right behind the Hello (0-RTT)"
        ) as step:
            (told,) = _outcomes(self._again)
            check(told["resumed"], "the second meeting must confirm the remembered hash")
            step.say(_timeline(told))

    # Act 7

    def start_liars(self) -> None:
        """Start the three liars of the last act. They need some seconds, in which the story goes on."""
        stage = self.stage
        upstream = f"https://127.0.0.1:{stage.ports['registry']}"
        for mode in ("wheel", "statement"):
            certificate, key = stage.authority.issue(mode, [REGISTRY])
            files = ("--upstream", upstream, "--cert", str(certificate), "--key", str(key))
            self._liars[mode] = stage.start_script(mode, "proxy.py", mode, "--port", str(stage.ports[mode]), *files)
        # Another history under the same keys: a registry that lies to some of its clients would serve it.
        shutil.copytree(stage.root / "registry" / "keys", stage.root / "fork" / "keys")
        # An honest server refuses to sign with these keys from the start again; a liar forges the record that prevents it.
        create_fence(stage.root / "fork" / "head", REGISTRY)
        self._liars["fork"] = self._start_registry("fork", stage.root / "fork")

    def attacks(self) -> None:
        """Three liars between a newcomer and the registry."""
        self.narrator.act("7  Three attacks")
        refusals = {mode: self.stage.submit(partial(self._refused, mode)) for mode in ATTACKS}
        for mode, attack in ATTACKS.items():
            with self.narrator.step(f"{attack.title}: refused at step {attack.step}") as step:
                step.say(refusals[mode].result())

    def _prepare_liars(self) -> None:
        """Let the victims meet the liars, and the accomplice publish in the fork, while the story goes on."""
        self._prepared = {mode: self.stage.submit(partial(self._meet_liar, mode)) for mode in ATTACKS}

    def _meet_liar(self, mode: str) -> None:
        stage = self.stage
        self._liars[mode].listens(stage.ports[mode])
        if mode != "fork":
            stage.treaty(f"victim-of-{mode}", "trust", "add", self.registry, via=mode)
            return
        shutil.copy(stage.home(PUBLISHER) / "identity.json", stage.home("accomplice") / "identity.json")
        stage.treaty("accomplice", "trust", "add", self.registry, via=mode)
        stage.treaty("accomplice", "publish", str(PROJECT / "1.1"), via=mode)

    def _refused(self, mode: str) -> str:
        """Fetch through a liar; the error must name the step, and nothing may be kept."""
        self._prepared[mode].result()
        # A fork contradicts only those who saw the other history.
        home = BUYER if mode == "fork" else f"victim-of-{mode}"
        store = self.stage.home(home) / "store"
        before = sorted(store.rglob("*")) if store.exists() else []
        arguments = ("verify", self.uris[-1], "--publisher", f"did:wba:{PUBLISHER}")
        error = self.stage.treaty(home, *arguments, via=mode, refused=True)["error"]
        check(error.get("step") == ATTACKS[mode].step, f"must be refused at step {ATTACKS[mode].step}: {error}")
        check((sorted(store.rglob("*")) if store.exists() else []) == before, "a refusal must leave the store as it was")
        return f"{error['code']}: {error['message']}"


def _outcomes(buyer: Actor) -> list[dict[str, Any]]:
    """Wait for a buyer's end, and return the outcomes of its sessions: the last line of its log. Raises `DemoFailed`."""
    buyer.succeeds()
    outcomes: list[dict[str, Any]] = json.loads(buyer.printed()[-1])
    return outcomes


def _timeline(told: dict[str, Any]) -> str:
    return ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in told["timeline"])
