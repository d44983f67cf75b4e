"""The commands of `treaty`: their names, their modules and their help."""

from __future__ import annotations

import os

from cyclopts import App, Parameter

from treaty_consensus import __version__

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
# By name, so that a command imports only its own modules. tests/contract/test_imports.py lists the libraries of each command.
for _name, (_place, _help) in {
    "identity": ("identity:app", "Make, show and rotate this agent's identity."),
    "trust": ("trust:app", "Manage the trusted registries."),
    "config": ("config:config", "Check policy.toml and agent.toml, and show every key with its value."),
    "new": ("authoring:new", "Write a folder with a new protocol."),
    "document": ("authoring:document", "Write the part of a protocol's document that follows from its manifest."),
    "test": ("authoring:test", "Check a protocol as publishing would, and replay its vectors."),
    "record": ("authoring:record", "Add recorded sessions to a project as vectors."),
    "stubs": ("authoring:stubs", "Write typed Python for the operations of a protocol."),
    "publish": ("protocols:publish", "Publish a folder: its document, and its handler if it has one."),
    "policy": ("policy:app", "Allow publishers, and list those that are allowed."),
    "doctor": ("doctor:doctor", "Check this home, its registries and the sandbox, and say how to mend them."),
    "discover": ("discovery:discover", "Find the agents of a domain, a DID or a URL, and their protocols."),
    "call": ("discovery:call", "Call a method that an agent describes by OpenRPC or serves by MCP."),
    "search": ("search:search", "Find protocols by words in any language, and by filters."),
    "fetch": ("protocols:fetch", "Download a protocol and its handler, after all ten checks."),
    "verify": ("protocols:verify", "Check a protocol: a folder offline, a URI at its registry."),
    "yank": ("status:yank", "Take back a protocol of yours, or a handler."),
    "deprecate": ("status:deprecate", "Warn of a protocol of yours, and name its successor."),
    "revoke": ("status:revoke", "Declare a protocol of yours, or a handler, harmful."),
    "activate": ("status:activate", "Undo yank, deprecate or revoke."),
    "grant": ("grants:grant", "Let another agent publish in your namespace."),
    "ungrant": ("grants:ungrant", "Take a grant back."),
    "grants": ("grants:grants", "List the grants of a namespace and to an agent."),
    "vote": ("elections:vote", "Vote on the consensus protocol of a topic."),
    "vouch": ("grants:vouch", "Vouch for an agent."),
    "withdraw": ("withdraw:app", "Withdraw your vote in a topic, or a vouch."),
    "vouches": ("grants:vouches", "List the vouches of an agent."),
    "standing": ("standing:standing", "Show the standing of an agent, credit by credit."),
    "speakers": ("standing:speakers", "List the speakers of a protocol or a topic."),
    "topics": ("elections:topics", "List the topics of a registry."),
    "topic": ("elections:topic", "Show a topic: its candidates and the newest decision."),
    "transcript": ("transcript:app", "Show a recorded session, or replay it to the byte."),
    "equivocation": ("equivocation:equivocation", "Check a proof that a log signed two histories."),
    "completion": ("completion:completion", "Print the completion script of a shell."),
    "audit": ("audit:audit", "Mirror a log, check every rule, recompute every decision."),
    "watch": ("watch:watch", "Follow a log, and tell what it has in your name."),
}.items():
    app.command(f"{__package__}.{_place}", name=_name, help=_help)
