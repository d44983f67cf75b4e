"""The command line of an agent: `treaty`.

Every command takes `--home`, `--registry`, `--resolve`, `--ca` and `--json`. An error is printed with its code and its fix, and
the exit status is 1. A wrong command line has status 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, Parameter

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import TreatyError, Unavailable

from .output import Output

app = App(
    name="treaty",
    help="Publish, elect and fetch the protocols that AI agents agree on.",
    version=version("treaty"),
    version_flags=["--version"],
    default_parameter=Parameter(negative=()),
    result_action="return_value",
)
# By name, so that a command imports only its own modules: Sigstore alone takes a third of a second.
for _name, (_place, _help) in {
    "identity": ("identity:app", "Make, show and rotate this agent's identity."),
    "trust": ("trust:app", "Manage the trusted registries."),
    "config": ("config:config", "Check policy.toml and agent.toml, and show every key with its value."),
    "new": ("authoring:new", "Write a folder with a new protocol that passes `treaty test`."),
    "test": ("authoring:test", "Check a protocol as publishing would, and replay its vectors."),
    "record": ("authoring:record", "Add recorded sessions to a project as vectors."),
    "stubs": ("authoring:stubs", "Write typed Python for the operations of a protocol."),
    "publish": ("protocols:publish", "Publish a folder: its document, and its handler if it has one."),
    "discover": ("discovery:discover", "Find the agents of a domain, a DID or a URL, and their protocols."),
    "call": ("discovery:call", "Call a method that an agent describes by OpenRPC or serves by MCP."),
    "search": ("protocols:search", "Find protocols by words, in English or Chinese, or list a topic."),
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
    app.command(f"{__name__}.{_place}", name=_name, help=_help)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, and exit with its status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(tokens)
    except TreatyError as error:
        Output("--json" in tokens).error(error)
        sys.exit(1)
    except OSError as error:
        # A full disk or a path of the command line: the user can act on it, so it is no traceback.
        failure = Unavailable(SystemCode.FILE, f"{error.strerror or error}: {error.filename or 'a system call'}.")
        Output("--json" in tokens).error(failure)
        sys.exit(1)
    except KeyboardInterrupt:
        # 128 + SIGINT, as shells report it.
        sys.exit(130)
