"""The commands of `treaty`: their names, their modules, their help and an example of each."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence

from cyclopts import App, Group, Parameter

from treaty_consensus import __version__

from .context import Options
from .output import Output

app = App(
    name="treaty",
    help="Publish, elect and fetch the protocols that AI agents agree on.",
    version=__version__,
    version_flags=["--version"],
    default_parameter=Parameter(negative=()),
    result_action="return_value",
)
if os.environ.get("NO_COLOR"):
    app.console = Output().console  # for help and versions, too
_URI = "https://registry.example/protocols/acme.example/hotel-booking/1.0"
_NEXT = _URI.replace("1.0", "2.0")
_LOYALTY = "https://registry.example/protocols/example.com/loyalty/1.0"
_EXAMPLES = {
    "conform aip": "127.0.0.1:50051",
    "conform handoff": "http://127.0.0.1:8080/handoffs",
    "conform routing": "ws://127.0.0.1:8765",
    "identity deactivate": "--document did.json",
    "identity new": "acme.example --document did.json",
    "identity rotate": "--document did.json",
    "mcp accept": "-- python server.py",
    "mcp install": "claude-code --guard files",
    "mcp guard": "-- python server.py",
    "oci export": f"{_URI} layout",
    "oci import": "layout hotel",
    "policy allow": "did:wba:acme.example",
    "policy export": "> witnesses.policy",
    "transcript replay": "session.jsonl",
    "transcript show": "session.jsonl",
    "trust accept-loss": "registry.example",
    "trust add": "'https://registry.example#registry.example+1a2b3c4d+ATVrZXk='",
    "trust explain": "did:wba:acme.example",
    "trust forget": "did:wba:acme.example",
    "trust list": "--name",
    "trust remove": "registry.example",
    "ucp profile": f"{_LOYALTY} --capability com.example.loyalty@2026-04-08=https://example.com/loyalty.json",
    "withdraw vote": "travel/hotel-booking",
    "withdraw vouch": "did:wba:guest.example",
}
"""The arguments of an example for each command, which those of the table below join."""
# By name, so that a command imports only its own modules. tests/contract/test_imports.py lists the libraries of each command.
for _group, _commands in {
    "Find and fetch protocols": {
        "search": ("search:search", "Find protocols by words in any language and by filters.", "hotel --state consensus"),
        "topics": ("elections:topics", "List the topics of a registry.", ""),
        "topic": ("elections:topic", "Show a topic: its candidates and the newest decision.", "travel/hotel-booking --explain"),
        "info": ("info:info", "Show a protocol on one screen: its publisher, its state, its operations.", _URI),
        "open": ("pages:open_page", "Open the page of a protocol, a topic or an agent in the browser.", "travel/hotel-booking"),
        "fetch": (
            "protocols:fetch",
            "Download a protocol, or a topic's elected one, after ten checks.",
            "travel/hotel-booking",
        ),
        "lock": ("locking:lock", "Pin protocols in treaty.lock, or show the pinned ones.", "travel/hotel-booking"),
        "sync": ("locking:sync", "Have exactly the code that treaty.lock pins.", "--check"),
        "outdated": ("locking:outdated", "Show which pinned protocols have a newer version or handler.", ""),
        "upgrade": ("locking:upgrade", "Pin the newest versions and handlers of the pinned protocols.", "--preview"),
        "oci": ("oci:app", "Carry a protocol through a registry of containers.", ""),
        "verify": ("protocols:verify", "Check a protocol: a folder offline, a URI at its registry.", "hotel"),
        "diff": ("difference:diff", "Compare the documents and operations of two protocols.", f"{_URI} {_NEXT}"),
    },
    "Write and publish protocols": {
        "new": ("authoring:new", "Write a folder with a new protocol that passes `treaty test`.", "hotel --topic travel/hotel"),
        "document": ("authoring:document", "Write the part of a document that follows from its manifest.", "hotel"),
        "import": (
            "importing:import_",
            "Make a protocol from an OpenAPI, OpenRPC, MCP or A2A description.",
            "openapi hotel.json hotel --topic travel/hotel",
        ),
        "test": ("authoring:test", "Check a protocol as publishing would, and replay its vectors.", "hotel --watch"),
        "record": ("authoring:record", "Add recorded sessions to a project as vectors.", "hotel recordings/session.json"),
        "stubs": ("authoring:stubs", "Write typed Python for the operations of a protocol.", f"{_URI} --output hotel.py"),
        "publish": ("protocols:publish", "Publish a folder: its document, and its handler if it has one.", "hotel --dry-run"),
        "deprecate": ("status:deprecate", "Warn of a protocol of yours, and name its successor.", f"{_URI} --successor {_NEXT}"),
        "yank": ("status:yank", "Take back a protocol of yours, or a handler.", f"{_URI} --successor {_NEXT}"),
        "revoke": ("status:revoke", "Declare a protocol of yours, or a handler, harmful.", _URI),
        "activate": ("status:activate", "Undo yank, deprecate or revoke.", _URI),
        "grant": ("grants:grant", "Let another agent publish in your namespace.", "did:wba:guest.example"),
        "ungrant": ("grants:ungrant", "Take a grant back.", "did:wba:guest.example"),
        "grants": ("grants:grants", "List the grants of a namespace and to an agent.", "did:wba:acme.example"),
    },
    "Elect": {
        "vote": ("elections:vote", "Vote on the consensus protocol of a topic.", f"travel/hotel-booking {_URI} none"),
        "vouch": ("grants:vouch", "Vouch for an agent.", "did:wba:guest.example"),
        "withdraw": ("withdraw:app", "Withdraw your vote in a topic, or a vouch.", ""),
        "vouches": ("grants:vouches", "List the vouches of an agent.", "did:wba:acme.example"),
        "standing": ("standing:standing", "Show the standing of an agent, credit by credit.", "did:wba:acme.example"),
        "speakers": ("standing:speakers", "List the speakers of a protocol or a topic.", "travel/hotel-booking"),
    },
    "Meet other agents": {
        "discover": ("discovery:discover", "Find the agents of a domain, a DID or a URL, and their protocols.", "shop.example"),
        "call": ("discovery:call", "Call a method that an agent describes by OpenRPC or serves by MCP.", "shop.example search"),
        "mcp": ("mcp:app", "Serve tools to a host of MCP, and guard the servers of others.", ""),
        "ucp": ("ucp:app", "Write the profile that offers protocols by names of UCP.", ""),
        "conform": ("conform:app", "Check a foreign agent of AIP, handoff or message-routing, rule by rule.", ""),
        "transcript": ("transcript:app", "Show a recorded session, or replay it to the byte.", ""),
    },
    "Check a registry": {
        "evidence": ("evidence:evidence", "Write one file that shows who agreed on a protocol, and verify it.", _URI),
        "audit": ("audit:audit", "Mirror a log, check every rule, recompute every decision.", "--topic travel/hotel-booking"),
        "watch": ("watch:watch", "Follow a log, and tell what it has in your name.", "--once"),
        "equivocation": ("equivocation:equivocation", "Check a proof that a log signed two histories.", "equivocation.json"),
    },
    "Set up this home": {
        "identity": ("identity:app", "Make, show and rotate this agent's identity.", ""),
        "trust": ("trust:app", "Manage the trusted registries.", ""),
        "policy": ("policy:app", "Allow publishers, and list those that are allowed.", ""),
        "config": ("config:config", "Check policy.toml and agent.toml, and show every key with its value.", "--negotiates"),
        "doctor": ("doctor:doctor", "Check this home, its registries and the sandbox, and say how to mend them.", "--json"),
        "completion": ("completion:completion", "Print the completion script of a shell.", "bash"),
    },
}.items():
    _command_group = Group.create_ordered(_group)
    for _order, (_name, (_place, _help, _EXAMPLES[_name])) in enumerate(_commands.items()):
        app.command(f"{__package__}.{_place}", name=_name, help=_help, group=_command_group, sort_key=_order)


def common_options() -> dict[str, str]:
    """Return each option of every command with its meaning."""
    assert Options.__doc__ is not None
    lines = inspect.cleandoc(Options.__doc__).partition("----------\n")[2].splitlines()
    return {name: text.strip() for name, text in zip(lines[::2], lines[1::2], strict=True)}


# Once, in the list of commands, and not in the help of each.
app["--help"].group = app["--version"].group = Group.create_ordered(
    "Options of every command", "\n".join(f"- `--{name}`: {text}" for name, text in common_options().items())
)


def describe(tokens: Sequence[str]) -> None:
    """Give the command that these words name the help of its docstring, which has more than its line in the list, and its
    example. No other command is imported."""
    command, names = app, ["treaty"]
    for token in tokens:
        if token.startswith("-") or token not in command:
            break
        command = command[token]
        names.append(token)
    if command is app:
        return
    common = ", ".join(f"`--{name}`" for name in common_options())
    command.help_epilogue = f"`treaty --help` has the options of every command: {common}."
    if command.default_command is not None:
        command.help = None
        example = " ".join(filter(None, [*names, _EXAMPLES.get(" ".join(names[1:]))]))
        command.help_epilogue = f"Example: `{example}`\n\n{command.help_epilogue}"
