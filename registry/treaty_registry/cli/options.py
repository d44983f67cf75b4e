"""Define the options of every command, and run commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import uvloop
from cyclopts import Parameter

from treaty_client.policy import read_policy
from treaty_consensus.did import Validated
from treaty_consensus.errors import NotFound
from treaty_consensus.log.durability import Durability
from treaty_io import tracing
from treaty_io.network.hosts import Network

from ..networks import TrustedProxies
from ..operator.control import NOT_RUNNING, ask
from ..settings import MetricsAddress, Settings, WitnessName, nameserver_of, witnesses_of
from ..storage.own_wheels import OwnWheels
from ..telemetry.logs import LogFormat, LogLevel, configure_logs
from .console import show
from .variables import Variable

_T = TypeVar("_T")


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """Options of every command.

    Parameters
    ----------
    data
        The data directory; made with its log. That of a registry holds the log's keys: back it up, keep it secret.
    database
        The URL of a PostgreSQL server. Default: an embedded one, in the data directory.
    blobs
        The URL of an object store for documents and wheels (s3://BUCKET/PATH, …). Default: a folder in the data directory.
    head
        The URL of the record of the newest signed head (s3://BUCKET/PATH/head, …). Default: a file in the data directory.
    json
        Print one JSON value instead of text.
    """

    data: Annotated[Path, Parameter(env_var="TREATY_REGISTRY_DATA")] = field(
        default_factory=lambda: Path.home() / ".treaty-registry"
    )
    database: Annotated[str | None, Parameter(env_var="TREATY_DATABASE_URL")] = None
    blobs: Annotated[str | None, Parameter(env_var="TREATY_BLOBS_URL")] = None
    head: Annotated[str | None, Parameter(env_var="TREATY_HEAD_URL")] = None
    json: Annotated[bool, Parameter(negative="")] = False

    def show(self, value: dict[str, Any], *renderables: Any) -> None:
        """Print the result of a command."""
        show(value, *renderables, as_json=self.json)

    @property
    def settings(self) -> Settings:
        """Return the settings for an existing log."""
        return Settings(data=self.data, database=self.database or None, blobs=self.blobs or None, head=self.head or None)


@Parameter(name="*")
@dataclass(frozen=True)
class TlsOptions:
    """Options of every command that listens.

    Parameters
    ----------
    tls_cert
        A PEM file with the certificate chain, to serve https.
    tls_key
        A PEM file with its private key.
    """

    tls_cert: Annotated[Path | None, Variable("TLS_CERT")] = None
    tls_key: Annotated[Path | None, Variable("TLS_KEY")] = None


@Parameter(name="*")
@dataclass(frozen=True)
class NetworkOptions:
    """Options of a registry and of a mirror: the hosts that they reach, the proxies before them, and their own package index.

    Parameters
    ----------
    resolve
        HOST=IP:PORT: reach this host there, to fetch DID documents or the mirrored log. May be repeated.
    ca
        A PEM file of certificate authorities to accept for the hosts that are reached, besides the public ones.
    trusted_proxy
        The address or network of a reverse proxy whose X-Forwarded-For names the sender. May be repeated.
    wheels
        A folder with wheels of Treaty (`make wheel`), which the index /index/treaty/simple/ has.
    """

    resolve: Annotated[tuple[str, ...], Variable("RESOLVE")] = ()
    ca: Annotated[Path | None, Variable("CA")] = None
    trusted_proxy: Annotated[tuple[str, ...], Variable("TRUSTED_PROXY")] = ()
    wheels: Annotated[Path | None, Variable("WHEELS")] = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the members of `Settings` for these options. Raises `Malformed` or `NotFound`, before anything is made."""
        network = Network.parse(self.resolve, self.ca)
        _ = network.tls  # reads the file of authorities
        proxies, wheels = TrustedProxies.parse(self.trusted_proxy), OwnWheels.read(self.wheels)
        return {"resolve": network.resolve, "ca": self.ca, "proxies": proxies, "wheels": wheels}


@Parameter(name="*")
@dataclass(frozen=True)
class NodeOptions:
    """Options of a registry on several machines, or with copies of its log.

    Parameters
    ----------
    node
        The URL at which the other nodes of this registry reach this process. They share a database, blobs, head and keys.
    tiles
        The URL of an object store (s3://BUCKET/PATH, …) to copy the log to, for a CDN or a static web server. May be repeated;
        the first one gets all other reads too.
    copies
        The number of these stores that must hold a statement before its receipt.
    standbys
        The number of synchronous standbys of the database that must hold a statement before its receipt.
    dask
        The address of a Dask scheduler (tcp://HOST:8786), whose workers help to close epochs. They must be the operator's own.
    """

    node: Annotated[str | None, Parameter(env_var="TREATY_NODE_URL")] = None
    tiles: Annotated[tuple[str, ...], Parameter(env_var="TREATY_TILES_URL")] = ()
    copies: Annotated[int, Variable("COPIES")] = 0
    standbys: Annotated[int, Variable("STANDBYS")] = 0
    dask: Annotated[str | None, Parameter(env_var="TREATY_DASK")] = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the members of `Settings` for these options. An empty variable of the environment is none."""
        durability = Durability(self.standbys, self.copies)
        return {"node": self.node or None, "tiles": self.tiles, "durability": durability, "dask": self.dask or None}


@Parameter(name="*")
@dataclass(frozen=True)
class WitnessOptions:
    """Options of a registry whose log is witnessed.

    Parameters
    ----------
    witness
        URL#KEY: have this witness (C2SP tlog-witness) cosign the log. May be repeated.
    witness_policy
        A C2SP tlog-policy file: have its witnesses that have a URL cosign the log too.
    tlog_mirror
        Upload the log's entries to the witness at this URL, which keeps a copy (C2SP tlog-mirror). May be repeated.
    """

    witness: Annotated[tuple[str, ...], Variable("WITNESS")] = ()
    witness_policy: Annotated[Path | None, Variable("WITNESS_POLICY")] = None
    tlog_mirror: Annotated[tuple[str, ...], Variable("TLOG_MIRROR")] = ()

    @property
    def names(self) -> tuple[WitnessName, ...]:
        """Return all witnesses. Raises as `WitnessName.parse`, `read_policy` and `witnesses_of`."""
        of_policy = witnesses_of(read_policy(self.witness_policy)) if self.witness_policy else ()
        return (*map(WitnessName.parse, self.witness), *of_policy)


@Parameter(name="*")
@dataclass(frozen=True)
class ValidationOptions:
    """Options of a registry that logs keys of names without a web server.

    Parameters
    ----------
    validate
        Log keys of names without a web server too: `oidc`, accounts of GitHub, by tokens of their workflows; `dns`, domains, by
        TXT records. May be repeated. Default: none.
    nameserver
        IP:PORT of the resolver that is asked for TXT records. Choose one that checks DNSSEC. Default: those of the system.
    """

    validate: Annotated[tuple[Validated, ...], Variable("VALIDATE")] = ()
    nameserver: Annotated[str | None, Variable("NAMESERVER")] = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the members of `Settings` for these options. Raises `Malformed`."""
        nameserver = nameserver_of(self.nameserver) if self.nameserver else None
        return {"validate": frozenset(self.validate), "nameserver": nameserver}


@Parameter(name="*")
@dataclass(frozen=True)
class ObservationOptions:
    """Options of every command that serves.

    Parameters
    ----------
    metrics_address
        PORT, IP:PORT or [IPV6]:PORT: serve the metrics there for Prometheus. A port alone is on loopback. Default: none.
    log_format
        The form of the log: `json`, one object a line; `text` for people; `auto`, text on a terminal.
    log_level
        The least level of a line: `debug`, `info`, `warning`, `error`.
    """

    metrics_address: Annotated[str | None, Variable("METRICS_ADDRESS")] = None
    log_format: Annotated[LogFormat, Variable("LOG_FORMAT")] = "auto"
    log_level: Annotated[LogLevel, Variable("LOG_LEVEL")] = "info"

    @property
    def metrics(self) -> MetricsAddress | None:
        """Return the address of the metrics, or None. Raises `Malformed`."""
        return MetricsAddress.parse(self.metrics_address) if self.metrics_address else None

    def begin(self, service: str) -> None:
        """Begin the log of this process, and its traces if the environment asks for them. Raises `Unavailable`."""
        configure_logs(self.log_format, self.log_level)
        tracing.start(service)


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's coroutine to its end."""
    return uvloop.run(work)


async def ask_or(settings: Settings, command: str, kind: type[_T], alone: Callable[[], Awaitable[_T]], *arguments: object) -> _T:
    """Return the result of a command of the running server, or the result of `alone` when no server runs."""
    try:
        return msgspec.convert(await ask(settings.control, command, *arguments), kind)
    except NotFound as error:
        # Work alone only when no server runs. With another error a server may be writing the log.
        if error.code != NOT_RUNNING:
            raise
    return await alone()
