"""`treaty trust`: manage the trusted registries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Refused

from .context import Options, run
from .output import escape
from .values import Origin

if TYPE_CHECKING:
    from treaty_client.registries.trust import RegistryName

app = App(name="trust", help="Manage the trusted registries.")
# By name, as in the package: the readers of proofs import many modules that other commands do not need.
app.command("treaty_command.memory:explain", name="explain", help="Show the facts that registries proved about a subject.")
app.command("treaty_command.memory:forget", name="forget", help="Forget the facts that registries proved about a subject.")


@app.command
def add(registry: str, /, *, yes: Annotated[bool, Parameter()] = False, options: Options = Options()) -> None:
    """Trust a registry by its key.

    Parameters
    ----------
    registry
        URL#KEY as its operator publishes it. With a bare URL the presented key is shown, and nothing is trusted.
    yes
        Trust the key that a bare URL presents. Use it only without a network between, such as on this machine.
    """
    from treaty_client.registries.trust import parse_registry_name

    name = parse_registry_name(registry) if "#" in registry else run(_presented(registry, options))
    # The key comes from the server that it shall check. Only a person who compares it makes it worth something.
    if "#" not in registry and not yes:
        raise Refused(
            SystemCode.UNCONFIRMED,
            f"{name.base_url} presents the key {name.key}; compare it with the key that its operator publishes elsewhere.",
            fix=f"Then run: treaty trust add '{name}'",
        )
    options.registries.add(name)
    value = {"registry": str(name), "origin": name.origin}
    options.output.result(value, f"[green]✓[/] You trust [bold]{escape(name.origin)}[/], reached at {escape(name.base_url)}.")


@app.command(name="list")
def list_registries(*, name: Annotated[bool, Parameter()] = False, options: Options = Options()) -> None:
    """List the trusted registries.

    Parameters
    ----------
    name
        Print only the names URL#KEY, one a line.
    """
    names = [registry.name for registry in options.registries.all().values()]
    # Whole names: a table would cut the keys, which are there to be compared and copied.
    lines = [str(one) if name else f"{one.origin}\n  {one}" for one in names]
    options.output.plain({"registries": [str(one) for one in names]}, *(lines or ([] if name else ["You trust no registry."])))


@app.command
def remove(origin: Origin, /, *, options: Options = Options()) -> None:
    """Trust a registry no longer, and forget the checkpoints of its log."""
    options.registries.remove(origin)
    options.output.result({"removed": origin}, f"[green]✓[/] {escape(origin)} is no longer trusted.")


@app.command
def accept_loss(origin: Origin, /, *, options: Options = Options()) -> None:
    """Accept that the memory of a registry was lost, and count anew what it proves.

    What was forgotten counts as at a first contact: a revocation that only this memory knew is believed no more.
    """
    options.registries.accept_loss(origin)
    options.output.result({"accepted": origin}, f"[green]✓[/] The memory of {escape(origin)} counts from now on.")


async def _presented(url: str, options: Options) -> RegistryName:
    from treaty_client.registries.api import RegistryClient  # an HTTP client, which the other commands do not need
    from treaty_client.registries.trust import parse_registry_name
    from treaty_io.base_url import parse_base_url

    base_url = parse_base_url(url)
    async with RegistryClient(base_url, options.network) as client:
        return parse_registry_name(f"{base_url}#{(await client.log()).key}")
