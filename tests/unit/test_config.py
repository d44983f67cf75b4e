"""The configuration of an agent: one tree from Python or from a home's files, read strictly."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import websockets
from meetings import REGISTRY, TOPIC, URI_2, buyer, shop
from scripted_negotiators import ScriptedNegotiators
from signers import ORIGIN

from treaty_agent import Agent, AgentConfig, Capacity, Identity, Policy, SessionTimeouts, config
from treaty_agent.config import settings
from treaty_agent.sessions.interfaces import PATIENT
from treaty_anp.flow_profile.payloads import ContextInfo
from treaty_client.registries.trust import TrustedRegistries, parse_registry_name
from treaty_command.main import main
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unavailable
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_sandbox.runtime import SandboxRuntime

DEFAULTS = dict(settings(AgentConfig()))
WORDS = {
    "flow.context.resource_availability": "low",
    "flow.context.connection_type": "wifi",
    "transcripts": "sessions",
    "recordings": "vectors",
}
KEYS = sorted(DEFAULTS)


def other(key: str) -> Any:
    """A value of a key that is not its default."""
    default = DEFAULTS[key]
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default - 1 if default > 1 else default + 1 if isinstance(default, int) else default / 2
    return ("quiet",) if default == () else WORDS[key]


def toml(key: str, value: Any) -> str:
    """A file with one key."""
    table, _, name = key.rpartition(".")
    written = json.dumps(list(value) if isinstance(value, tuple) else value)
    return (f"[{table}]\n" if table else "") + f"{name} = {written}\n"


def load(home: Path, text: str | bytes, **options: Any) -> AgentConfig:
    (home / "agent.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return AgentConfig.load(home, **options)


def in_code(key: str, value: Any) -> AgentConfig:
    """A configuration with one key changed by Python's own means."""

    def changed(tree: Any, parts: list[str]) -> Any:
        name, *rest = parts
        part = getattr(tree, name)
        if part is None and rest:
            part = SessionTimeouts() if name == "timeouts" else ContextInfo()
        new = changed(part, rest) if rest else value
        if isinstance(tree, ContextInfo):
            return ContextInfo(**{field: new if field == name else getattr(tree, field) for field in tree.__struct_fields__})
        return dataclasses.replace(tree, **{name: new})

    config: AgentConfig = changed(AgentConfig(), key.split("."))
    return config


@pytest.mark.parametrize("key", KEYS)
def test_each_key_is_reached_from_the_file_and_from_code(tmp_path: Path, key: str) -> None:
    value = other(key)
    expected = tmp_path / value if key in ("transcripts", "recordings") else value
    loaded, direct = load(tmp_path, toml(key, value)), in_code(key, expected)
    assert value != DEFAULTS[key]
    assert dict(settings(loaded)) == dict(settings(direct)) == {**DEFAULTS, key: expected}


@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_another_type_is_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(Malformed, match=f"`{key}`") as failure:
        load(tmp_path, toml(key, True if not isinstance(DEFAULTS[key], bool) else "yes"))
    assert (failure.value.code, bool(failure.value.fix)) == ("config.file", True)


@pytest.mark.parametrize("key", [key for key in KEYS if type(DEFAULTS[key]) in (int, float)])
def test_a_number_out_of_range_is_refused(tmp_path: Path, key: str) -> None:
    kind = type(DEFAULTS[key])
    for bad in (kind(-1), kind(2**53 + 2), *((float("nan"),) if kind is float else ())):
        text = toml(key, bad).replace("NaN", "nan")
        for way in (partial(load, tmp_path, text), partial(in_code, key, bad)):
            with pytest.raises(Malformed, match=f"`{key}`") as failure:
                way()
            assert (failure.value.code, bool(failure.value.fix)) == ("config.file", True)


def test_zero_is_allowed_only_where_it_means_none(tmp_path: Path) -> None:
    assert load(tmp_path, "[limits]\nquestions = 0\n[capacity]\nnegotiations = 0\n").limits.questions == 0
    for key in ("capacity.sessions", "workers.max_workers", "timeouts.idle", "limits.rounds"):
        with pytest.raises(Malformed, match=f"`{key}`"):
            load(tmp_path, toml(key, 0))


def test_the_source_specification_allows_ten_messages(tmp_path: Path) -> None:
    assert load(tmp_path, "[limits]\nrounds = 10\n").limits.rounds == 10
    with pytest.raises(Malformed, match=r"`limits\.rounds` is 11"):
        load(tmp_path, "[limits]\nrounds = 11\n")


def test_work_ends_before_the_peer_stops_waiting() -> None:
    with pytest.raises(Malformed, match=r"`flow\.timeouts\.work`"):
        in_code("flow.timeouts.work", 30.0)


@pytest.mark.parametrize("part", [{"limits": SessionTimeouts()}, {"limits": None}, {"policy": SessionTimeouts()}])
def test_a_part_of_another_type_is_refused_in_code(part: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match=f"`{next(iter(part))}`") as failure:
        AgentConfig(**part)
    assert failure.value.code == "config.file"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("timeout = 5", "config.file", ("`timeout`", "timeouts")),
        ("[timeouts]\nhelo = 5", "config.file", ("`timeouts.helo`", "hello")),
        ("[flow.thresholds]\nx = 5", "config.file", ("`flow.thresholds.x`", "latency")),
        ("[flow.context]\nx = 5", "config.file", ("`flow.context.x`", "preferences")),
        ("[policy]\nreport = true", "config.file", ("`policy`", "policy.toml")),
        ('home = "/"', "config.file", ("`home`", "Remove")),
        ("[flow.resolvers]\nanp = 1", "config.file", ("`flow.resolvers`", "Python")),
        ("timeouts = 5", "config.file", ("`timeouts`", "[timeouts]")),
        ('[flow]\ncontext = "low"', "config.file", ("`flow.context`", "[flow.context]")),
        ('[flow.context]\nresource_availability = "much"', "config.file", ("`flow.context.resource_availability`",)),
        ("[workers]\nmax_workers = 1.5", "config.file", ("`workers.max_workers`", "48")),
        ("timeouts", "config.file", ("not TOML",)),
        (b"\xff", "config.file", ("not TOML",)),
        ("a = " + "[" * 20_000, "config.file", ("not TOML",)),
    ],
)
def test_a_bad_file_is_refused_with_the_fix(tmp_path: Path, text: str | bytes, code: str, words: tuple[str, ...]) -> None:
    with pytest.raises(Malformed) as failure:
        load(tmp_path, text)
    assert failure.value.code == code
    assert [word for word in words if word not in str(failure.value)] == []
    assert failure.value.fix


def test_the_cap_comes_before_the_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(tmp_path, "#" * config.MAX_FILE) == AgentConfig(timeouts=SessionTimeouts(), home=tmp_path)
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("parsed"))
    with pytest.raises(TooLarge) as failure:
        load(tmp_path, "#" * (config.MAX_FILE + 1))
    assert failure.value.code == "config.file"


def test_a_file_that_cannot_be_read_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").mkdir()
    with pytest.raises(Unavailable) as failure:
        AgentConfig.load(tmp_path)
    assert failure.value.code == "config.file"


def test_the_policy_comes_from_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('report = true\npublishers = ["did:wba:a.example"]\n')
    assert AgentConfig.load(tmp_path).policy == Policy(["did:wba:a.example"], report=True)


def test_000_34_an_agent_waits_longer_where_a_model_writes(
    tmp_path: Path,
) -> None:
    text = "[timeouts]\nidle = 9\nreply = 7\n"
    plain, patient = load(tmp_path, text).timeouts, load(tmp_path, text, negotiates=True).timeouts
    assert plain == SessionTimeouts(idle=9, reply=7) and plain is not None and plain.code == 15
    assert patient == dataclasses.replace(PATIENT, idle=9, reply=7)
    chosen = load(tmp_path, "[timeouts]\ncode = 15\n", negotiates=True).timeouts
    assert chosen is not None and chosen.code == 15


# The agent


def test_an_agent_has_what_its_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(
        "[timeouts]\nidle = 9\n[limits]\nrounds = 3\n[capacity]\nsessions = 5\n[flow]\nshortcuts = false\n"
        "[workers]\nmax_workers = 7\n[sandbox]\nmemory = 134217728\n"
    )
    config = AgentConfig.load(tmp_path)
    config = AgentConfig.load(tmp_path)
    agent = Agent(Identity.create(), REGISTRY, config)
    context = agent.context
    assert (context.timeouts, context.limits, context.capacity) == (config.timeouts, config.limits, config.capacity)
    assert (context.home, agent.config) == (tmp_path, config)
    assert agent.flow.settings == config.flow
    assert isinstance(context.ports.runtime, SandboxRuntime)
    assert context.ports.runtime.passivation == config.workers
    assert context.ports.runtime.limits == config.sandbox


def test_a_policy_and_a_home_are_a_configuration(tmp_path: Path) -> None:
    agent = Agent(Identity.create(), REGISTRY, Policy(report=True), home=tmp_path)
    assert agent.config == AgentConfig(Policy(report=True), SessionTimeouts(), home=tmp_path)


def test_the_default_home_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREATY_HOME", str(tmp_path))
    assert Agent(Identity.create(), REGISTRY).config.home == tmp_path


def test_a_home_beside_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Malformed) as failure:
        Agent(Identity.create(), REGISTRY, AgentConfig(), home=tmp_path)
    assert (failure.value.code, list(tmp_path.iterdir())) == ("config.file", [])


async def test_sessions_beyond_the_capacity_are_refused(tmp_path: Path) -> None:
    seller = shop(tmp_path, capacity=Capacity(sessions=1))
    async with seller.agent, buyer(tmp_path).agent as customer, seller.agent.listen("127.0.0.1", 0) as port:
        url = f"ws://127.0.0.1:{port}"
        async with customer.connect(url, topic=TOPIC):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(url)
            assert refused.value.response.status_code == 503


# From a home


def make_home(home: Path) -> Identity:
    """A home with an identity, one trusted registry and both files."""
    identity = Identity.create()
    identity.save(home / "identity.json")
    TrustedRegistries(home).add(parse_registry_name(REGISTRY))
    (home / "policy.toml").write_text("report = true\n")
    (home / "agent.toml").write_text("[timeouts]\nidle = 9\n")
    return identity


def test_an_agent_is_made_from_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = make_home(tmp_path)
    monkeypatch.setenv("TREATY_HOME", str(tmp_path))
    for agent in (Agent.from_home(tmp_path), Agent.from_home(), Agent.from_home(registry=REGISTRY)):
        assert (agent.did, agent.context.reports.registry) == (identity.did, ORIGIN)
        assert agent.config == AgentConfig(Policy(report=True), SessionTimeouts(idle=9), home=tmp_path)
    patient = Agent.from_home(tmp_path, negotiators=ScriptedNegotiators())
    assert patient.context.timeouts == dataclasses.replace(PATIENT, idle=9)


def test_a_wrong_network_in_the_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_home(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setenv("TREATY_RESOLVE", "shop.example")
    with pytest.raises(Malformed) as failure:
        Agent.from_home(tmp_path)
    assert failure.value.code == "network.url"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_one_of_several_registries_has_to_be_named(tmp_path: Path) -> None:
    make_home(tmp_path)
    other_log = SignerKey("other.example", KeyType.ED25519, bytes(32)).verifier
    TrustedRegistries(tmp_path).add(parse_registry_name(f"https://other.example#{other_log}"))
    with pytest.raises(Refused) as failure:
        Agent.from_home(tmp_path)
    assert failure.value.code == "registry.not-trusted"
    assert Agent.from_home(tmp_path, registry="other.example").context.reports.registry == "other.example"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("identity.json", "identity.missing"),
        ("registries.json", "registry.not-trusted"),
        ("policy.toml", "policy.file"),
        ("agent.toml", "config.file"),
    ],
)
def test_a_refused_home_stays_as_it_is(tmp_path: Path, name: str, code: str) -> None:
    make_home(tmp_path)
    if name.endswith(".toml"):
        (tmp_path / name).write_text("x = 1\n")
    else:
        (tmp_path / name).unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(TreatyError) as failure:
        Agent.from_home(tmp_path)
    assert failure.value.code == code
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


async def test_an_agent_that_listens_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seller = shop(tmp_path, URI_2, "https://registry.example/protocols/nobody.example/nothing/1.0")
    with caplog.at_level(logging.INFO, "treaty_agent.agent"):
        async with seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
            pass
    (line,) = [record.getMessage() for record in caplog.records if record.name == "treaty_agent.agent.serving"]
    assert line == (
        f"Listening on 127.0.0.1, port {port}; served: {URI_2}; "
        "not served: https://registry.example/protocols/nobody.example/nothing/1.0 (protocol.unknown)"
    )


# The command


def test_the_command_prints_all_keys_and_their_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_home(tmp_path)
    main(["config", "--home", str(tmp_path), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert (data["home"], data["files"]) == (str(tmp_path), ["policy.toml", "agent.toml"])
    assert data["config"]["policy"]["report"] is True
    for key, value in {**DEFAULTS, "timeouts.idle": 9.0}.items():
        found = data["config"]
        for part in key.split("."):
            found = found[part]
        assert found == (list(value) if isinstance(value, tuple) else value), key
    main(["config", "--home", str(tmp_path)])
    lines = {tuple(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {("timeouts.idle", "9", "600"), ("timeouts.hello", "10"), ("policy.report", "true", "false")} <= lines


def test_the_command_shows_the_waits_of_an_agent_that_negotiates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["config", "--home", str(tmp_path), "--negotiates", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert (data["files"], data["config"]["timeouts"]["reply"]) == ([], 120.0)
    assert list(tmp_path.iterdir()) == []


def test_the_command_shows_witnesses_and_signers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = "w1.example+11c8f4c8+BEtCePP28bkSi/ZxLF65+cydHDRh+AhwUc5Okowfb9iu"
    (tmp_path / "policy.toml").write_text(
        f'[witnesses]\nquorum = 1\nkeys = ["{key}"]\n[[signers]]\nidentity = "x"\nissuer = "y"\n'
        '[tenures]\n"did:wba:a.example" = 2\n'
    )
    main(["config", "--home", str(tmp_path), "--json"])
    policy = json.loads(capsys.readouterr().out)["config"]["policy"]
    assert policy["witnesses"] == {"quorum": 1, "keys": [key]}
    assert (policy["signers"], policy["tenures"]) == ([["x", "y"]], {"did:wba:a.example": 2})
    main(["config", "--home", str(tmp_path)])
    assert "quorum = 1" in capsys.readouterr().out


def test_the_command_refuses_a_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "agent.toml").write_text("[timeouts]\nidle = -1\n")
    with pytest.raises(SystemExit) as left:
        main(["config", "--home", str(tmp_path), "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (left.value.code, error["code"], "`timeouts.idle`" in error["message"]) == (1, "config.file", True)


def test_the_documented_example_is_a_file(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "specification" / "home.md").read_text()
    section = page[page.index("### agent.toml") :]
    (example,) = re.findall(r"^```toml\n(.*?)^```$", section[: section.index("### treaty.lock")], re.MULTILINE | re.DOTALL)
    config = load(tmp_path, example)
    assert (config.transcripts, config.workers.max_workers, config.flow.shortcuts) == (tmp_path / "sessions", 16, False)
