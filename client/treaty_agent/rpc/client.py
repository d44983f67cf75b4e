"""Find and call the methods that an agent's description leads to.

    async with RemoteMethods(description.interfaces, RpcExchange(network, sign=signer.headers)) as remote:
        found = await remote.call("search", {"query": "Tokyo"})

An interface that cannot be read is skipped as long as another one has the method. A method that two interfaces have is that of
the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType

from treaty_anp.discovery.interfaces import RemoteInterface
from treaty_consensus.errors import NotFound, TooLarge, TreatyError
from treaty_consensus.printable import printable
from treaty_handler import Value
from treaty_io.codes import RpcCode

from .exchange import RpcExchange
from .mcp import McpSession
from .mcp_endpoint import McpEndpoint
from .methods import MAX_METHODS, RemoteMethod
from .openrpc import parse_openrpc


class RemoteMethods:
    """The methods of some interfaces. For one event loop; use `async with`, or `aclose` it."""

    def __init__(self, interfaces: Sequence[RemoteInterface | McpSession], exchange: RpcExchange) -> None:
        """Send nothing yet. `interfaces`: as a description has them, or sessions, which end with this object."""
        self._interfaces, self._exchange = tuple(interfaces), exchange
        self._methods: dict[str, tuple[RemoteMethod, McpSession | None]] = {}
        self._sessions: list[McpSession] = []
        self._loaded = False
        self.problems: list[TreatyError] = []

    async def __aenter__(self) -> RemoteMethods:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the sessions with MCP servers."""
        for session in self._sessions:
            await session.aclose()

    async def list(self) -> Mapping[str, RemoteMethod]:
        """Return the methods by name; read the interfaces the first time. `problems` has the errors of those that failed.

        Raises `NotFound` (`rpc.nothing`) without an interface, `TooLarge` (`rpc.answer`), and the error of the first interface
        if none can be read.
        """
        if not self._interfaces:
            raise NotFound(RpcCode.NOTHING, "The agent describes no OpenRPC and no MCP interface.")
        if not self._loaded:
            # In turn and not at once: the interfaces of an agent are usually at one host.
            for interface in self._interfaces:
                try:
                    await self._load(interface)
                except TreatyError as error:
                    self.problems.append(error)
            if len(self.problems) == len(self._interfaces):
                raise self.problems[0]
            self._loaded = True
        return MappingProxyType({name: method for name, (method, _) in self._methods.items()})

    async def call(self, name: str, arguments: Mapping[str, Value]) -> Value:
        """Call a method by its name, once. The arguments are checked before they are sent, the result before it is returned.

        Raises the errors of `list`, `NotFound` (`rpc.nothing`), `Malformed` (`rpc.arguments`, `rpc.answer`), `Refused`
        (`rpc.answer`, `rpc.error`), and the errors of `RpcExchange.call`. After `rpc.arguments` and `rpc.answer` nothing was
        sent.
        """
        methods = await self.list()
        if name not in methods:
            names = ", ".join(printable(one, 40) for one in list(methods)[:10]) or "none"
            raise NotFound(RpcCode.NOTHING, f"The agent has no method {printable(name, 80)}.", fix=f"It has: {names}.")
        method, session = self._methods[name]
        method.check_arguments(arguments)
        method.check_schemas()  # of the result too, before a call that may have effects
        if session is not None:
            result = await session.call(method, arguments)
        else:
            params: object = dict(arguments)
            if method.order is not None:
                params = [arguments[one] for one in method.order if one in arguments]
            result = await self._exchange.call(method.url, method.name, params, {})
        method.check_result(result)
        return result

    async def _load(self, interface: RemoteInterface | McpSession) -> None:
        session = None
        if isinstance(interface, McpSession) or interface.kind == "mcp":
            session = interface if isinstance(interface, McpSession) else McpSession(McpEndpoint(interface.url, self._exchange))
            # Before the first request: a session that fails half-way must be ended, too.
            self._sessions.append(session)
            tools = await session.tools()
        else:
            document: object = interface.document
            if document is None:
                document = await self._exchange.document(interface.url)
            tools = parse_openrpc(document, interface.url, interface.servers)
        for method in tools:
            self._methods.setdefault(method.name, (method, session))
        if len(self._methods) > MAX_METHODS:
            raise TooLarge(RpcCode.ANSWER, f"The agent has more than {MAX_METHODS} methods.")
