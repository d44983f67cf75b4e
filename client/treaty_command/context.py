"""The options of every command, and the objects that they name.

Every command imports this module, so each property imports what it needs itself.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Group, Parameter

from treaty_io.home import CA_VARIABLE, RESOLVE_VARIABLE, default_home

from .output import Output
from .values import Origin

if TYPE_CHECKING:
    from types import FrameType

    from treaty_client.policy import Policy
    from treaty_client.registries.api import RegistryClient
    from treaty_client.registries.sources import Sources
    from treaty_client.registries.trust import TrustedRegistries, TrustedRegistry
    from treaty_io.identity import Identity
    from treaty_io.network.hosts import Network

_T = TypeVar("_T")


# Not shown in the help of a command: `commands` has them once.
@Parameter(name="*", group=Group("Options of every command", show=False))
@dataclass(frozen=True)
class Options:
    """Options of every command.

    Parameters
    ----------
    home
        Where identity, trust, policy and store are kept. Default: $TREATY_HOME, or ~/.treaty.
    registry
        The origin of the registry to use, when you trust more than one.
    resolve
        HOST=IP:PORT: reach a host at this address. May be repeated; $TREATY_RESOLVE has several, with spaces between.
    ca
        A PEM file of certificate authorities to accept besides the public ones. Default: $TREATY_CA.
    json
        Print one JSON value instead of text.
    verbose
        Tell on standard error which host was asked and which step was checked, with the time that each took. No secrets are told.
    """

    home: Annotated[Path, Parameter(env_var="TREATY_HOME")] = field(default_factory=default_home)
    registry: Origin | None = None
    resolve: Annotated[tuple[str, ...], Parameter(env_var=RESOLVE_VARIABLE)] = ()
    ca: Annotated[Path | None, Parameter(env_var=CA_VARIABLE)] = None
    json: Annotated[bool, Parameter()] = False
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"])] = False

    def __post_init__(self) -> None:
        """Write the client's log if the user asked for it. The options of a command are made once, before it runs."""
        if self.verbose:
            from .log import write_log

            write_log()

    @cached_property
    def output(self) -> Output:
        """The output of the command."""
        return Output(self.json)

    @cached_property
    def network(self) -> Network:
        """The network with the addresses and authorities of the options."""
        from treaty_io.network.hosts import Network  # an HTTP client

        return Network.parse(self.resolve, self.ca)

    @cached_property
    def registries(self) -> TrustedRegistries:
        """The registries that this home trusts."""
        from treaty_client.registries.trust import TrustedRegistries

        return TrustedRegistries(self.home)

    @property
    def identity_file(self) -> Path:
        """The file of the identity."""
        return self.home / "identity.json"

    def identity(self) -> Identity:
        """Load the identity of this home. Raises `NotFound` with the command that makes one."""
        from treaty_io.identity import Identity

        # Loaded by the commands that sign, and not with the options: all others work without an identity.
        return Identity.load(self.identity_file)

    async def signer(self, client: RegistryClient, origin: str, *, oidc: bool) -> Identity:
        """Return the identity of this home, or that of the account for which this workflow runs. Raises as `identity` and
        `workflow_identity`."""
        if not oidc:
            return self.identity()
        from treaty_client.statements.workflow_identity import workflow_identity  # Sigstore's library, which few commands need

        return await workflow_identity(client, origin)

    def policy(self, *publishers: str) -> Policy:
        """Load the policy of this home, for this command with further publishers as the second choice. Raises `Malformed`."""
        from treaty_client.policy import load_policy

        policy = load_policy(self.home / "policy.toml")
        return replace(policy, publishers=(*policy.publishers, *publishers)) if publishers else policy

    def trusted(self) -> TrustedRegistry:
        """Return the registry of `--registry`, or the only trusted one. Raises as `TrustedRegistries.choose`."""
        return self.registries.choose(self.registry or "")

    def sources(self) -> Sources:
        """Return the addresses of that registry, with the mirrors of the policy. Raises as `trusted` and `policy`."""
        from treaty_client.registries.sources import Sources

        name = self.trusted().name
        return Sources(name.base_url, self.policy().mirrors.get(name.origin, ()))


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's coroutine to its end. Raises `KeyboardInterrupt` after Ctrl-C, when the coroutine has cleaned up.

    A second Ctrl-C does not wait for that.
    """
    import asyncio
    import logging
    import signal
    import threading

    tasks: list[asyncio.Task[Any]] = []
    interrupted = False

    async def announced() -> _T:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        return await work

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted or not tasks:
            raise KeyboardInterrupt
        interrupted = True
        # Failures that nothing awaits any more would be reported as faults of the program.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
        runner.get_loop().call_soon_threadsafe(tasks[0].cancel)

    # Only the main thread gets signals. A program in the background may have to ignore them. With another handler than Python's
    # own the runner sets none.
    handler = signal.getsignal(signal.SIGINT)
    handles = threading.current_thread() is threading.main_thread() and handler != signal.SIG_IGN
    if handles:
        signal.signal(signal.SIGINT, interrupt)
    try:
        with asyncio.Runner() as runner:
            return runner.run(announced())
    except BaseException:
        # A child that the same Ctrl-C ended may fail first. Its error is a consequence, so it is not shown.
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if handles:
            signal.signal(signal.SIGINT, handler)
