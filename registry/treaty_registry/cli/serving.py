"""Define the commands that create or run a server: `init`, `migrate`, `serve`, `witness`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from treaty_client.network.hosts import Network
from treaty_consensus.log.note import VerifierKey

from ..data_directory import running_database
from ..listening import Listening
from ..networks import TrustedProxies
from ..registry import Registry
from ..server import serve as serve_http
from ..settings import Quotas, Settings, WitnessName
from ..storage.postgres import connect
from ..storage.postgres import migrate as migrate_database
from ..witness.cosigner import Cosigner
from ..witness.server import serve as serve_witness
from .console import show
from .options import ObservationOptions, Options, TlsOptions, run


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    origin: str | None = None,
    base_url: str | None = None,
    tls: TlsOptions = TlsOptions(),
    resolve: tuple[str, ...] = (),
    ca: Path | None = None,
    quota: float = 1,
    trusted_proxy: tuple[str, ...] = (),
    parameters: Path | None = None,
    witness: tuple[str, ...] = (),
    observation: ObservationOptions = ObservationOptions(),
    options: Options = Options(),
) -> None:
    """Serve the registry. In an empty data directory, make a new log first.

    Parameters
    ----------
    host
        The address to listen on.
    port
        The port to listen on.
    origin
        The permanent name of a new log: a host. Default: PORT.localhost, so that two logs of one machine differ.
    base_url
        The URL at which clients reach this registry, if not https://ORIGIN (for a localhost origin: the listening address).
    resolve
        HOST=IP:PORT: fetch the DID documents of this host there. May be repeated.
    ca
        A PEM file of certificate authorities to accept for these hosts besides the public ones.
    quota
        Multiply every quota by this factor.
    trusted_proxy
        The address or network of a reverse proxy whose X-Forwarded-For names the sender. May be repeated.
    parameters
        A TOML file with the constants of a new log's election. Default: a development electorate.
    witness
        URL#KEY: have this witness (C2SP tlog-witness) cosign the log. May be repeated.
    """
    observation.begin("treaty-registry")
    network = Network.parse(resolve, ca)
    settings = replace(
        options.settings,
        host=host,
        port=port,
        origin=origin or _origin_of_new(options.settings, port),
        base_url=base_url,
        tls_cert=tls.tls_cert,
        tls_key=tls.tls_key,
        resolve=network.resolve,
        ca=ca,
        quotas=Quotas().times(quota),
        proxies=TrustedProxies.parse(trusted_proxy),
        parameters=parameters,
        witnesses=tuple(map(WitnessName.parse, witness)),
        metrics=observation.metrics,
    )
    run(serve_http(settings, lambda registry: _announce(registry, options)))


def init(*, origin: str, parameters: Path | None = None, options: Options = Options()) -> None:
    """Make a new log: its keys, its database, its first two leaves.

    Parameters
    ----------
    origin
        The log's permanent name: a host.
    parameters
        A TOML file with the constants of its election. Default: a development electorate.
    """

    async def make() -> dict[str, object]:
        async with Registry.open(replace(options.settings, origin=origin, parameters=parameters)) as registry:
            return _description(registry)

    made = run(make())
    options.show(
        made,
        f"[green]✓[/] The log [bold]{escape(origin)}[/] is in {escape(str(options.data))}; keep that directory safe and secret.",
        f"  key: {escape(str(made['key']))}",
        "  Serve it: treaty-registry serve",
    )


def migrate(*, options: Options = Options()) -> None:
    """Update the database's tables to this release. `serve` does so too."""

    async def apply() -> list[str]:
        async with running_database(options.settings) as url, connect(url) as connection:
            return await migrate_database(connection)

    applied = run(apply())
    options.show({"applied": applied}, f"[green]✓[/] {escape(', '.join(applied)) or 'Nothing to do.'}")


def witness(
    *,
    log: tuple[str, ...],
    data: Annotated[Path, Parameter(env_var="TREATY_WITNESS_DATA")],
    host: str = "127.0.0.1",
    port: int = 8081,
    name: str | None = None,
    tls: TlsOptions = TlsOptions(),
    observation: ObservationOptions = ObservationOptions(),
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Witness logs: cosign a checkpoint only if it extends the one cosigned before (C2SP tlog-witness).

    Parameters
    ----------
    log
        The verifier key of a log to witness. May be repeated.
    data
        The witness's own directory, made by the first start: its key and its records. Never restore an old copy.
    host
        The address to listen on.
    port
        The port to listen on.
    name
        The permanent name of a new witness, such as witness.example/w1. Default: localhost:PORT/witness.
    json
        Print one JSON value instead of text.
    """
    observation.begin("treaty-witness")
    named = name if name or (data / "witness.key").exists() else f"localhost:{port}/witness"
    listening = Listening(host, port, tls.tls_cert, tls.tls_key)

    def announce(cosigner: Cosigner) -> None:
        key, logs = str(cosigner.key), {origin: cosigner.latest(origin) for origin in cosigner.logs}
        sizes = {origin: latest.checkpoint.size if latest else 0 for origin, latest in logs.items()}
        url = f"{'https' if tls.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        show(
            {"key": key, "url": url, "logs": sizes},
            f"[green]✓[/] The witness [bold]{escape(cosigner.key.name)}[/] listens at {escape(url)}.",
            f"  key: {escape(key)}",
            *(f"  {escape(origin)}: {size} leaves cosigned so far" for origin, size in sizes.items()),
            f"  Registries ask it with: treaty-registry serve --witness '{escape(f'{url}#{key}')}'",
            as_json=json,
        )

    run(serve_witness(data, [VerifierKey.parse(text) for text in log], named, listening, announce, observation.metrics))


def _origin_of_new(settings: Settings, port: int) -> str | None:
    # An existing log has its origin in its keys, so no default may contradict it.
    # Without a colon: Go's Sigstore clients take the host alone for the name of the log's key (`data_directory`).
    return None if settings.keys.exists() else f"{port}.localhost"


def _description(registry: Registry) -> dict[str, object]:
    return {
        "origin": registry.origin,
        "base_url": registry.base_url,
        "name": f"{registry.base_url}#{registry.log_key}",
        "key": str(registry.log_key),
        "size": registry.head.size,
    }


def _announce(registry: Registry, options: Options) -> None:
    where, name = escape(registry.base_url), escape(f"{registry.base_url}#{registry.log_key}")
    options.show(
        _description(registry),
        f"[green]✓[/] The registry [bold]{escape(registry.origin)}[/] listens at {where} ({registry.head.size} leaves).",
        f"  Trust it:  treaty trust add '{name}'",
        f"  Publish:   treaty publish DIR     Search: treaty search     Its log: {where}/checkpoint",
        "  Ctrl-C stops it.",
    )
