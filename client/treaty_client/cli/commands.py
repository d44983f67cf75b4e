"""The commands of `treaty`: their names, their modules and their help."""

from __future__ import annotations

from cyclopts import App, Parameter

from treaty_consensus import __version__

app = App(
    name="treaty",
    help="Publish, elect and fetch the protocols that AI agents agree on.",
    version=__version__,
    version_flags=["--version"],
    default_parameter=Parameter(negative=()),
    result_action="return_value",
)
# By name, so that a command imports only its own modules. tests/contract/test_imports.py lists the libraries of each command.
for _name, (_place, _help) in {
    "identity": ("identity:app", "Make, show and rotate this agent's identity."),
    "trust": ("trust:app", "Manage the trusted registries."),
    "config": ("config:config", "Check policy.toml and agent.toml, and show every key with its value."),
    "publish": ("protocols:publish", "Publish a folder: its document, and its handler if it has one."),
    "discover": ("discovery:discover", "Find the agents of a domain, a DID or a URL, and their protocols."),
    "call": ("discovery:call", "Call a method that an agent describes by OpenRPC or serves by MCP."),
    "search": ("search:search", "Find protocols by words, in English or Chinese, or list a topic."),
    "fetch": ("protocols:fetch", "Download a protocol and its handler, after all ten checks."),
    "verify": ("protocols:verify", "Check a protocol: a folder offline, a URI at its registry."),
    "vote": ("elections:vote", "Vote on the consensus protocol of a topic."),
    "vouch": ("vouches:vouch", "Vouch for an agent, or withdraw a vouch."),
    "vouches": ("vouches:vouches", "List the vouches of an agent."),
    "standing": ("standing:standing", "Show the standing of an agent, credit by credit."),
    "speakers": ("standing:speakers", "List the speakers of a protocol or a topic."),
    "topic": ("elections:topic", "Show a topic: its candidates and the newest decision."),
    "transcript": ("transcript:app", "Show a recorded session, or replay it to the byte."),
    "equivocation": ("equivocation:equivocation", "Check a proof that a log signed two histories."),
    "audit": ("audit:audit", "Mirror a log, check every rule, recompute every decision."),
}.items():
    app.command(f"treaty_client.cli.{_place}", name=_name, help=_help)
