"""The options that every command has, and what follows from them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from treaty_consensus.errors import NotFound, Refused

from ..identity import Identity
from ..network.hosts import Network
from ..policy import Policy, load_policy
from ..registries.trust import TrustedRegistries, TrustedRegistry
from ..store import default_home
from .output import Output

_T = TypeVar("_T")


@Parameter(name="*")
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
        HOST=IP:PORT: reach a host at this address. May be repeated.
    ca
        A PEM file of certificate authorities to accept besides the public ones.
    json
        Print one JSON value instead of text.
    """

    home: Annotated[Path, Parameter(env_var="TREATY_HOME")] = field(default_factory=default_home)
    registry: str | None = None
    resolve: tuple[str, ...] = ()
    ca: Path | None = None
    json: Annotated[bool, Parameter()] = False

    @cached_property
    def output(self) -> Output:
        """Where the command speaks."""
        return Output(self.json)

    @cached_property
    def network(self) -> Network:
        """How hosts are reached."""
        return Network.parse(self.resolve, self.ca)

    @cached_property
    def registries(self) -> TrustedRegistries:
        """Whom this home trusts."""
        return TrustedRegistries(self.home)

    @property
    def identity_file(self) -> Path:
        """Where the identity is."""
        return self.home / "identity.json"

    def identity(self) -> Identity:
        """The identity of this home. Raises `NotFound` with the command that makes one."""
        return Identity.load(self.identity_file)

    def policy(self) -> Policy:
        """The policy of this home."""
        return load_policy(self.home / "policy.toml")

    def trusted(self) -> TrustedRegistry:
        """The registry to use: the one that was named, or the only one. Raises `NotFound` or `Refused`."""
        if self.registry is not None:
            return self.registries.get(self.registry)
        known = list(self.registries.all().values())
        if not known:
            raise NotFound("registry.none", "You trust no registry yet.", fix="Add one: treaty trust add URL#KEY")
        if len(known) > 1:
            origins = ", ".join(sorted(registry.name.origin for registry in known))
            raise Refused("registry.several", f"You trust several registries: {origins}.", fix="Choose one: --registry ORIGIN")
        return known[0]


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's coroutine to its end."""
    return asyncio.run(work)
