"""Define the command that runs a registry: `serve`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from ..listening import Listening
from ..registry import Registry
from ..server import serve as serve_http
from ..settings import Quotas
from .creating import description
from .options import NetworkOptions, NodeOptions, ObservationOptions, Options, TlsOptions, WitnessOptions, run
from .variables import Variable


def serve(
    *,
    host: Annotated[str, Variable("HOST")] = "127.0.0.1",
    port: Annotated[int, Variable("PORT")] = 8080,
    new: Annotated[bool, Parameter(negative="")] = False,
    origin: Annotated[str | None, Variable("ORIGIN")] = None,
    base_url: Annotated[str | None, Variable("BASE_URL")] = None,
    tls: TlsOptions = TlsOptions(),
    network: NetworkOptions = NetworkOptions(),
    quota: Annotated[float, Variable("QUOTA")] = 1,
    contact: Annotated[str | None, Variable("CONTACT")] = None,
    parameters: Annotated[Path | None, Variable("PARAMETERS")] = None,
    witnesses: WitnessOptions = WitnessOptions(),
    nodes: NodeOptions = NodeOptions(),
    observation: ObservationOptions = ObservationOptions(),
    options: Options = Options(),
) -> None:
    """Serve the registry of the log in the data directory.

    Parameters
    ----------
    host
        The address to listen on.
    port
        The port to listen on.
    new
        Make a new log first, in an empty data directory. To try Treaty; `init` makes one that stays.
    origin
        The permanent name of the log: a host. Default for a new one: PORT.localhost, so that two logs of one machine differ.
    base_url
        The URL at which clients reach this registry, if not https://ORIGIN (for a localhost origin: the listening address).
    quota
        Multiply every quota by this factor.
    contact
        Where anyone reports abuse: an e-mail address or an https URL. Pages, /log and refusals name it.
    parameters
        A TOML file with the constants of a new log's election. Default: a development electorate.
    """
    observation.begin("treaty-registry")
    settings = replace(
        options.settings,
        host=host,
        port=port,
        # Without a colon: Go's Sigstore clients take the host alone for the name of the log's key (`data_directory`).
        origin=origin or (f"{port}.localhost" if new else None),
        new=new,
        base_url=base_url or None,
        tls_cert=tls.tls_cert,
        tls_key=tls.tls_key,
        quotas=Quotas().times(quota),
        contact=contact or None,
        parameters=parameters,
        witnesses=witnesses.names,
        tlog_mirrors=tuple(url.rstrip("/") for url in witnesses.tlog_mirror),
        metrics=observation.metrics,
        **network.settings,
        **nodes.settings,
    )
    url = Listening(host, port, tls.tls_cert, tls.tls_key).url
    run(serve_http(settings, lambda registry: _announce(registry, url, options)))


def _announce(registry: Registry, url: str, options: Options) -> None:
    where, name = escape(registry.base_url), escape(f"{registry.base_url}#{registry.log_key}")
    reached = [] if url == registry.base_url else [f"  Its address for clients is {where}."]
    options.show(
        description(registry),
        f"[green]✓[/] The registry [bold]{escape(registry.origin)}[/] listens at {escape(url)} ({registry.head.size} leaves).",
        *reached,
        f"  Trust it:  treaty trust add '{name}'",
        f"  Publish:   treaty publish DIR     Search: treaty search     Its log: {where}/checkpoint",
        "  Ctrl-C stops it.",
    )
