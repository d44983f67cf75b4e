"""What an operator chooses. Everything else follows from the log.

The data directory, made by the first start and to be backed up as a whole:

    DATA/keys/        0700: the log's, the clock's and the operator's key, and the Sigstore authority's
    DATA/head         the fence: the newest head that was ever signed (see `fence`); never restore an old copy of it
    DATA/blobs/       documents, cards, wheels, …, unless `blobs` names an object store
    DATA/postgres/    the embedded database, unless `database` names a server
    DATA/run/         0700: the control socket of the running server
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treaty_client.registries.trust import parse_base_url
from treaty_consensus.errors import Conflict, Malformed
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.witness import Quorum
from treaty_consensus.protocol import is_origin

from .connections import ConnectionLimits
from .networks import TrustedProxies


@dataclass(frozen=True)
class Rate:
    """A token bucket: `burst` at once, refilled at `per_second`."""

    per_second: float
    burst: float

    def times(self, factor: float) -> Rate:
        """This rate, so many times."""
        return Rate(self.per_second * factor, self.burst * factor)


@dataclass(frozen=True)
class Share:
    """A token bucket that follows the measured capacity of the machine (`FairQueue.capacity`): refilled at `share` of it, and
    holding what comes in `seconds`."""

    share: float
    seconds: float

    def times(self, factor: float) -> Share:
        """This share, so many times."""
        return Share(self.share * factor, self.seconds)

    def of(self, capacity: float) -> Rate:
        """The bucket at a capacity of so many statements a second."""
        return Rate(self.share * capacity, self.share * capacity * self.seconds)


@dataclass(frozen=True)
class Quotas:
    """How many statements this process takes: of one principal, from one address prefix (IPv4 /24, IPv6 /48), of everybody.

    `strangers`: statements of did:keys, which are free, from one prefix and of all together. `uploads`: bytes from one prefix;
    what is uploaded waits for its statement for an hour, and one network must not fill that room. `services`: requests to the
    Sigstore services from one prefix; a certificate or an entry is a leaf for ever, and a handler takes three requests.
    """

    principal: Share = Share(0.25, 40)
    prefix: Share = Share(0.5, 20)
    total: Share = Share(1, 20)
    strangers_prefix: Rate = Rate(2, 500)
    strangers: Rate = Rate(20, 5_000)
    services: Rate = Rate(2, 500)
    uploads: Rate = Rate(32 * 1024, 192 * 1024 * 1024)

    def times(self, factor: float) -> Quotas:
        """These quotas, each multiplied by `factor`."""
        return Quotas(
            self.principal.times(factor),
            self.prefix.times(factor),
            self.total.times(factor),
            self.strangers_prefix.times(factor),
            self.strangers.times(factor),
            self.services.times(factor),
            self.uploads.times(factor),
        )


@dataclass(frozen=True)
class WitnessName:
    """A witness: the prefix of its URLs, without a slash at its end, and its key."""

    url: str
    key: VerifierKey

    @classmethod
    def parse(cls, text: str) -> WitnessName:
        """From URL#VKEY; the URL is https, or http on this machine. Raises `Malformed` (`settings.witness`)."""
        url, _, key = text.partition("#")
        try:
            return cls(parse_base_url(url), VerifierKey.parse(key))
        except Malformed as error:
            raise Malformed(
                "settings.witness",
                f"Not a witness: {text[:200]!r}.",
                fix="Name it as its operator does: URL#KEY, where the URL is https, or http on this machine.",
            ) from error


@dataclass(frozen=True)
class Settings:
    """`origin`: the log's name for ever; only the first start needs it. `base_url`: where clients reach this registry, when that
    is not `https://ORIGIN` (or, for a loopback origin, the address listened on). `database`: a PostgreSQL URL; None starts the
    embedded one. `blobs`: an object store URL; None is a folder of the data directory. `resolve`: HOST → (address, port), hosts
    that DID resolution reaches there and nowhere else, exempt from its rule of public addresses; `ca`: a PEM file of roots to
    trust for them. `parameters`: a file with the constants of a new log's election (`operator.parameters`); None makes a
    development electorate. `witnesses`: who cosigns the log. Raises `Malformed`."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 8080
    origin: str | None = None
    base_url: str | None = None
    database: str | None = None
    blobs: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    resolve: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    ca: Path | None = None
    quotas: Quotas = Quotas()
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    witnesses: tuple[WitnessName, ...] = ()
    parameters: Path | None = None

    def __post_init__(self) -> None:
        if self.origin is not None and not is_origin(self.origin):
            raise Malformed(
                "settings.origin",
                f"{self.origin!r} cannot be a log's origin.",
                fix="An origin is a lower-case host, with a port where it is not the default: registry.example, localhost:8080.",
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Malformed("settings.tls", "TLS needs both a certificate and its key.", fix="Give --tls-cert and --tls-key.")
        if self.witnesses:
            Quorum(tuple(witness.key for witness in self.witnesses), 1)

    @property
    def keys(self) -> Path:
        """The directory of secret keys."""
        return self.data / "keys"

    @property
    def control(self) -> Path:
        """The directory of the running server's control socket."""
        return self.data / "run"

    @property
    def fence(self) -> Path:
        """The record of the newest signed head."""
        return self.data / "head"

    def check_origin(self, origin: str) -> None:
        """Raises `Conflict` when the log here has another origin than the one asked for."""
        if self.origin not in (None, origin):
            raise Conflict(
                "settings.other-origin",
                f"The log in {self.data} is {origin}, and no log changes its name to {self.origin}.",
                fix=f"Leave --origin out, or choose an empty directory for a log named {self.origin}.",
            )

    def reached_at(self, origin: str) -> str:
        """The base URL of the registry whose log is `origin`, without a slash at its end."""
        if self.base_url is not None:
            return self.base_url.rstrip("/")
        if not _is_loopback(origin.partition(":")[0]):
            return f"https://{origin}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
