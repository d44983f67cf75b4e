"""Define the operator's settings. Everything else follows from the log.

The data directory is made with a new log (`new`), and must be backed up as a whole:

    DATA/keys/        0700: the log's, the clock's and the operator's key, and the Sigstore authority's
    DATA/head         the fence: the newest head that was ever signed (see `fence`), unless `head` names another place; never
                      restore an old copy of it
    DATA/restored     a mark: the log was restored here, and has signed nothing here yet (see `other_signer`)
    DATA/blobs/       documents, cards, wheels, …, unless `blobs` names an object store
    DATA/postgres/    the embedded database, unless `database` names a server
    DATA/run/         0700: the control socket of the running server
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from treaty_consensus.did import Validated
from treaty_consensus.errors import Conflict, Malformed
from treaty_consensus.log.durability import MAX_PLACES, Durability
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.policy import WitnessPolicy
from treaty_consensus.log.witness import MAX_COSIGNERS, Quorum
from treaty_consensus.protocol import is_origin
from treaty_io.admission.connections import ConnectionLimits
from treaty_io.base_url import parse_base_url

from .codes import SettingsCode
from .networks import TrustedProxies
from .storage.hosts import each_host
from .storage.objects import local_path, shown
from .storage.own_wheels import OwnWheels

_CONTACT = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+|https://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~/?=&%+-]*)?")
_MAX_CONTACT = 200  # characters

MIRROR_MARK = "mirror.json"
"""The file of a data directory that is a mirror's (`mirroring.directory`). A registry never signs there."""


@dataclass(frozen=True)
class Rate:
    """A token bucket with `burst` tokens, refilled at `per_second`."""

    per_second: float
    burst: float

    def times(self, factor: float) -> Rate:
        """Return this rate multiplied by a factor."""
        return Rate(self.per_second * factor, self.burst * factor)


@dataclass(frozen=True)
class Share:
    """A token bucket that follows the measured capacity of the machine (`FairQueue.capacity`).

    It is refilled at `share` of the capacity, and holds the tokens of `seconds`.
    """

    share: float
    seconds: float

    def times(self, factor: float) -> Share:
        """Return this share multiplied by a factor."""
        return Share(self.share * factor, self.seconds)

    def of(self, capacity: float) -> Rate:
        """Return the bucket at a capacity in statements a second."""
        return Rate(self.share * capacity, self.share * capacity * self.seconds)


@dataclass(frozen=True)
class Quotas:
    """The quotas of this process: for one principal, for one address prefix (IPv4 /24, IPv6 /48), and for all senders together.

    `strangers`: statements of did:keys, which are free, from one prefix and from all together. `uploads`: bytes from one prefix;
    a pending upload is kept for an hour, and one network must not fill that space. `services`: requests to the Sigstore services
    from one prefix; each certificate or entry is a permanent leaf, and a handler takes three requests.
    """

    # Shares of the measured capacity: no network can use up all of it.
    principal: Share = Share(0.25, 40)
    prefix: Share = Share(0.5, 20)
    total: Share = Share(1, 20)
    strangers_prefix: Rate = Rate(2, 500)
    # One network gets a tenth of the common budget, so it cannot use that up alone.
    strangers: Rate = Rate(20, 5_000)
    services: Rate = Rate(2, 500)
    uploads: Rate = Rate(32 * 1024, 192 * 1024 * 1024)

    def times(self, factor: float) -> Quotas:
        """Return these quotas, each multiplied by `factor`. Raises `Malformed` (`settings.value`) unless it is positive."""
        # A quota of nothing, or of NaN, would refuse every write.
        if not (math.isfinite(factor) and factor > 0):
            raise Malformed(SettingsCode.VALUE, f"{factor} is no factor for quotas.", fix="Give a positive number: --quota 2")
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
    """A witness: the prefix of its URLs, without a trailing slash, and its key."""

    url: str
    key: VerifierKey

    @classmethod
    def parse(cls, text: str) -> WitnessName:
        """Parse URL#VKEY. The URL is https, or http on this machine. Raises `Malformed` (`settings.value`)."""
        url, _, key = text.partition("#")
        try:
            return cls(parse_base_url(url), VerifierKey.parse(key))
        except Malformed as error:
            raise Malformed(
                SettingsCode.VALUE,
                f"Not a witness: {text[:200]!r}.",
                fix="Name it as its operator does: URL#KEY, where the URL is https, or http on this machine.",
            ) from error


def witnesses_of(policy: WitnessPolicy) -> tuple[WitnessName, ...]:
    """Return the witnesses of a policy that have a URL. Raises `Malformed` (`settings.value`)."""
    return tuple(WitnessName.parse(f"{each.url}#{each.key}") for each in policy.witnesses if each.url is not None)


@dataclass(frozen=True)
class MetricsAddress:
    """The address at which the metrics are served. They are for the operator alone, so it is on loopback by default."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> MetricsAddress:
        """Parse PORT, IP:PORT or [IPV6]:PORT. Raises `Malformed` (`settings.value`)."""
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        try:
            number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
            if not 0 < number < 65536:
                raise ValueError(port)
            return cls(str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)), number)
        except ValueError as error:
            raise Malformed(
                SettingsCode.VALUE,
                f"Not an address for metrics: {text[:80]!r}.",
                fix="Name a port of this machine, or an IP address and a port: 9464, 127.0.0.1:9464, [::1]:9464.",
            ) from error


@dataclass(frozen=True)
class Settings:
    """The settings of one registry. Raises `Malformed` for invalid values.

    `new`: make a new log in the empty data directory; without it only a log that is there is opened. `origin`: the permanent
    name of the log; only a new one needs it. `base_url`: the URL at which clients reach this
    registry, if it is not `https://ORIGIN` (or, for a loopback origin, the listening address). `database`: a PostgreSQL URL;
    None starts the embedded server. `blobs`: the URL of an object store; None uses a folder of the data directory. `resolve`:
    HOST → (address, port): hosts whose DID documents are fetched from there only, even if the address is not public. `ca`: a PEM
    file of additional roots for them. `parameters`: a file with the constants of a new log's election (`operator.parameters`);
    None makes a development electorate. `validate`: how names without a DID document are validated; in no way by default.
    `nameserver`: the address and the port of the resolver that is asked for the records of domains; None for the system's.
    `witnesses`: the witnesses that cosign the log. `tlog_mirrors`: the URLs of those that
    keep a copy of it, which is uploaded. `head`: the URL of the record of the
    newest signed head; None uses a file of the data directory. `node`: the URL at which the other nodes of this registry reach
    this process; None when it is the only one. `tiles`: the URLs of object stores to copy the log to; the first gets all reads
    too. `durability`: where a leaf must be before its receipt; `copies` counts `tiles`. `dask`: the
    address of a Dask scheduler, whose workers verify and count when an epoch closes. `metrics`: the address of the metrics; None
    serves none. `contact`: an e-mail address or https URL to which anyone reports abuse; pages, /log and refusals name it.
    `wheels`: those of the registry's own package index.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 8080
    new: bool = False
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
    tlog_mirrors: tuple[str, ...] = ()
    parameters: Path | None = None
    head: str | None = None
    node: str | None = None
    tiles: tuple[str, ...] = ()
    durability: Durability = field(default_factory=Durability)
    dask: str | None = None
    metrics: MetricsAddress | None = None
    contact: str | None = None
    validate: frozenset[Validated] = frozenset()
    nameserver: tuple[str, int] | None = None
    wheels: OwnWheels = field(default_factory=OwnWheels)

    def __post_init__(self) -> None:
        if self.origin is not None and not is_origin(self.origin):
            raise Malformed(
                SettingsCode.VALUE,
                f"{self.origin!r} cannot be a log's origin.",
                fix="An origin is a lower-case host, such as registry.example. The port belongs to the address (--base-url).",
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Malformed(SettingsCode.VALUE, "TLS needs both a certificate and its key.", fix="Give --tls-cert and --tls-key.")
        if not 0 < self.port < 65536:
            raise Malformed(SettingsCode.VALUE, f"{self.port} is no port.", fix="Choose one from 1 to 65535: --port")
        if self.database is not None:
            _check_database(self.database)
        if self.head_object is not None:
            _check_object(self.head_object)
        if self.base_url is not None:
            _check_base_url(self.base_url)
        if self.contact is not None:
            _check_contact(self.contact)
        self._check_witnesses()
        self._check_node()
        self._check_durability()

    def _check_witnesses(self) -> None:
        keys = [witness.key for witness in self.witnesses]
        for key in keys:
            Quorum((key,), 1)
        # The same key under two names would count twice. A witness may have a key of each type, under one name.
        if len({key.public for key in keys}) != len(keys) or len(keys) > 2 * MAX_COSIGNERS:
            raise Malformed(
                SettingsCode.VALUE,
                f"Two witnesses have the same key, or there are more than {2 * MAX_COSIGNERS}.",
                fix="Name each key of a witness once.",
            )

        others = set(self.tlog_mirrors) - {witness.url for witness in self.witnesses}
        # A mirror takes entries of a checkpoint alone that its witness has cosigned.
        if others:
            raise Malformed(
                SettingsCode.VALUE,
                f"No witness of this log is at {shown(min(others))!r}, so no copy can be uploaded there.",
                fix="Name the mirror as a witness too, with the same URL: --witness URL#KEY --tlog-mirror URL",
            )

    def _check_node(self) -> None:
        if self.node is None:
            return
        # What nodes do not share they would each have for themselves: another log, other blobs, another record.
        missing = {"--database": self.database, "--blobs": self.blobs, "--head": self.head}
        if not all(missing.values()):
            raise Malformed(
                SettingsCode.VALUE,
                f"The nodes of a registry share {', '.join(name for name, value in missing.items() if not value)}.",
                fix="Give every node the same --database, --blobs and --head, each a URL, and the same keys.",
            )
        try:
            parts = urlsplit(self.node)
            # http is allowed: the messages are authenticated, and nothing in them is secret.
            is_node = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            is_node = is_node and not (parts.path or parts.query or parts.fragment or parts.username)
        except ValueError:
            is_node = False
        if not is_node:
            raise Malformed(
                SettingsCode.VALUE,
                f"{shown(self.node)!r} is no URL of a node.",
                fix="Name it as http://HOST:PORT or https://HOST:PORT; an address of IPv6 stands in brackets.",
            )

    def _check_durability(self) -> None:
        copies = self.durability.copies
        if not (0 <= copies <= len(self.tiles) and 0 <= self.durability.standbys <= MAX_PLACES):
            raise Malformed(
                SettingsCode.VALUE,
                f"A leaf cannot be in {copies} of {len(self.tiles)} copies, and on {self.durability.standbys} standbys.",
                fix="Name a store for each copy: --tiles URL --tiles URL --copies 2",
            )
        # A leaf is of no use without its documents and without the record: a lost disk would still end the log.
        places = [("--blobs", self.blobs), ("--head", self.head), *(("--tiles", url) for url in self.tiles)]
        here = [name for name, url in places if self._is_here(url)] if copies else []
        if here:
            raise Malformed(
                SettingsCode.VALUE,
                f"Receipts promise {copies} copies, and {', '.join(dict.fromkeys(here))} is in the data directory.",
                fix="Give --blobs, --head and each --tiles the URL of a store on another disk.",
            )
        if self.durability.standbys and self.database is None:
            raise Malformed(
                SettingsCode.VALUE,
                "The embedded database has no standbys.",
                fix="Name a PostgreSQL server that has them (--database), or use --copies.",
            )

    def _is_here(self, url: str | None) -> bool:
        """Whether what is at a URL is lost with the data directory. None: its place is there."""
        path = local_path(url) if url is not None else self.data
        return path is not None and path.resolve().is_relative_to(self.data.resolve())

    @property
    def keys(self) -> Path:
        """Return the directory of secret keys."""
        return self.data / "keys"

    @property
    def control(self) -> Path:
        """Return the directory of the running server's control socket."""
        return self.data / "run"

    @property
    def fence(self) -> Path:
        """Return the path of the record of the newest signed head, where it is a file."""
        path = local_path(self.head) if self.head is not None else None
        return path if path is not None else self.data / "head"

    @property
    def restored(self) -> Path:
        """Return the path of the mark of a restored log that has signed nothing here yet."""
        return self.data / "restored"

    @property
    def head_object(self) -> str | None:
        """Return the URL of the record where it is an object of an object store."""
        return self.head if self.head is not None and local_path(self.head) is None else None

    def check_origin(self, origin: str) -> None:
        """Raise `Conflict` when the log here has another origin than the requested one."""
        if self.origin not in (None, origin):
            raise Conflict(
                SettingsCode.DIRECTORY,
                f"The log in {self.data} is {origin}. Its name cannot change to {self.origin}.",
                fix=f"Leave --origin out, or choose an empty directory for a log named {self.origin}.",
            )

    def reached_at(self, origin: str) -> str:
        """Return the base URL of the registry whose log is `origin`, without a trailing slash."""
        if self.base_url is not None:
            return self.base_url.rstrip("/")
        # A loopback origin is not the address: tests and first trials listen on any port.
        if not _is_loopback(origin.partition(":")[0]):
            return f"https://{origin}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}"


def _check_base_url(url: str) -> None:
    # It is a part of the registry's name, which agents refuse in any other form.
    try:
        parse_base_url(url)
    except Malformed as error:
        raise Malformed(
            SettingsCode.VALUE,
            f"Agents cannot use {shown(url)!r} as the address of a registry.",
            fix="Give the https URL at which they reach it, or an http URL on this machine: --base-url https://registry.example",
        ) from error


def _check_database(url: str) -> None:
    try:
        # `port` raises for text that is none, such as a part of a password with a slash.
        is_postgres = all(urlsplit(each).port != 0 for each in each_host(url))
        is_postgres = is_postgres and urlsplit(url).scheme in ("postgresql", "postgres")
    except ValueError:
        is_postgres = False
    if not is_postgres:
        # Without the text and the cause: they may hold a password.
        raise Malformed(
            SettingsCode.VALUE,
            "The URL of the database is not one of PostgreSQL.",
            fix="Give postgresql://USER@HOST:PORT/DATABASE, or leave it out for the embedded server: --database. "
            "In a password write / as %2F, @ as %40, : as %3A.",
        )


def nameserver_of(text: str) -> tuple[str, int]:
    """Parse IP:PORT or [IPV6]:PORT. Raises `Malformed` (`settings.value`)."""
    host, _, port = text.rpartition(":")
    try:
        address = str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
        number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
        if not 0 < number < 65536:
            raise ValueError(port)
    except ValueError as error:
        raise Malformed(
            SettingsCode.VALUE, f"Not a name server: {text[:80]!r}.", fix="Give its address and its port: 127.0.0.1:53, [::1]:53."
        ) from error
    return address, number


def _check_contact(text: str) -> None:
    # Pages show it as a link, and refusals as text.
    if not _CONTACT.fullmatch(text) or len(text) > _MAX_CONTACT:
        raise Malformed(
            SettingsCode.VALUE,
            f"{text[:80]!r} is no contact.",
            fix="Give an e-mail address or an https URL: --contact abuse@example.com",
        )


def _check_object(url: str) -> None:
    name = urlsplit(url).path.rpartition("/")[2] if "://" in url else ""
    if not name:
        raise Malformed(
            SettingsCode.VALUE,
            f"{shown(url)!r} names no object for the record of the newest signed head.",
            fix="Name the object itself, in a bucket: --head s3://BUCKET/PATH/head, or file:///PATH/head",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
