"""What a registering node of AIP tries in order to have the gateway connect to other networks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import grpc
import pytest
import trustme
from aip_nodes import LOOPBACK, begin, nodes, told

from treaty_agent import OperationError
from treaty_aip import AgentInfo, Bounds, GatewayServiceStub, Security, SessionStatus
from treaty_aip.addresses import MAX_KEPT, NodeAddresses, caller_ip, parse_address
from treaty_aip.calls import MAX_IDLE, Channels
from treaty_aip.host import SessionHost
from treaty_aip.stubs import aip_pb2

HERE = ip_address("127.0.0.1")
AWAY = ip_address("203.0.113.9")
INTERNAL = [
    "10.0.0.1:80",
    "169.254.169.254:80",
    "192.168.1.1:443",
    "0.0.0.0:80",
    "[::]:80",
    "[fe80::1]:80",
    "[::ffff:10.0.0.1]:80",
    "203.0.113.10:80",
]
OTHER_FORMS = [
    "unix:/run/private.sock",
    "unix:///run/private.sock",
    "unix-abstract:private",
    "vsock:2:80",
    "dns://127.0.0.1:5353/internal:80",
    "dns:internal:80",
    "ipv4:10.0.0.1:80,127.0.0.1:80",
    "xds:///internal",
    "127.0.0.1:0",
    "127.0.0.1:65536",
    "127.0.0.1:80/path",
    "user@127.0.0.1:80",
    "127.0.0.1:80\n",
    "[127.0.0.1:80",
    "127.0.0.1",
    "",
    "x" * 300 + ":80",
]


@asynccontextmanager
async def private_service() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A service on loopback, and the bytes that it was sent."""
    payloads: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        payloads.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", payloads


@pytest.mark.sample(8)
@pytest.mark.threat(232)
@pytest.mark.parametrize("address", [*INTERNAL, *OTHER_FORMS])
async def test_003_74_a_node_registers_only_its_own_address(address: str) -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        await network.agent("a", gateway)
        before = gateway.get_registered_nodes()
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = GatewayServiceStub(channel)
            info = aip_pb2.AgentInfo(agent_id="m", address=address)
            own = aip_pb2.UpdateNodeInfoRequest(
                sender_id="a", peer=aip_pb2.Peer(agent_info=aip_pb2.AgentInfo(agent_id="a", address=address))
            )
            for call in (stub.RegisterAgent(info), stub.RegisterTool(aip_pb2.ToolInfo(tool_id="m", address=address))):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call
                assert error.value.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.UpdateNodeInfo(own)
        assert gateway.get_registered_nodes() == before


@pytest.mark.threat(232)
@pytest.mark.parametrize(
    "address", ["127.0.0.1:6379", "localhost:6379", "[::1]:6379", "127.9.9.9:6379", "2130706433:80", "0x7f.1:80"]
)
async def test_003_74_a_remote_caller_names_no_loopback_address(address: str) -> None:
    addresses = NodeAddresses((), list)
    with pytest.raises(OperationError) as error:
        await addresses.check(address, AWAY)
    assert error.value.status == 403
    with pytest.raises(OperationError):
        await addresses.check(address, None)


async def test_003_74_a_node_names_its_own_address_or_an_allowed_one() -> None:
    addresses = NodeAddresses(("10.1.0.0/16", "2001:db8::/32"), list)
    assert await addresses.check("203.0.113.9:1", AWAY) == "ipv4:203.0.113.9:1"
    assert await addresses.check("[::ffff:203.0.113.9]:1", AWAY) == "ipv4:203.0.113.9:1"
    assert await addresses.check("10.1.2.3:1", AWAY) == "ipv4:10.1.2.3:1"
    assert await addresses.check("[2001:db8::1]:1", AWAY) == "ipv6:[2001:db8::1]:1"
    assert await addresses.check("127.0.0.1:1", ip_address("::1")) == "ipv4:127.0.0.1:1"
    assert (await addresses.check("localhost:1", HERE)).endswith(":1")
    with pytest.raises(OperationError) as error:
        NodeAddresses(("10.1.2.3/16",), list)
    assert error.value.status == 400


@pytest.mark.threat(232)
async def test_003_74_an_address_changed_after_the_check_is_refused() -> None:
    answers = [["203.0.113.9"], ["10.0.0.1"]]

    async def lookup(host: str) -> list[str]:
        return answers.pop(0)

    addresses = NodeAddresses((), list, lookup)
    addresses.keep("m.example:1", await addresses.check("m.example:1", AWAY))
    with pytest.raises(OperationError):
        await addresses.check("m.example:1", AWAY)
    assert addresses.target("m.example:1") == "ipv4:203.0.113.9:1"
    with pytest.raises(OperationError):
        addresses.target("other.example:1")


@pytest.mark.threat(232)
async def test_003_74_an_internal_address_is_not_disclosed() -> None:
    async def lookup(host: str) -> list[str]:
        if host == "internal":
            return ["10.0.0.1"]
        raise socket.gaierror

    addresses = NodeAddresses((), list, lookup)
    texts = set()
    for address in ("internal:1", "unknown:1"):
        with pytest.raises(OperationError) as error:
            await addresses.check(address, AWAY)
        texts.add((error.value.status, error.value.message))
    assert len(texts) == 1


@pytest.mark.threat(232)
async def test_003_74_a_refused_registration_moves_no_node() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        first, second = await network.agent("a", gateway), await network.agent("b", gateway)
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await GatewayServiceStub(channel).RegisterAgent(aip_pb2.AgentInfo(agent_id="m", address=second.address))
            assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS
        session = await begin(first, "b")
        assert told(await second.receive_inquiry()) == (SessionStatus.START_QUEST, "hello")
        await first.close_agent_client(session, "b")


@pytest.mark.threat(232)
async def test_003_74_a_refused_update_keeps_no_address() -> None:
    addresses = NodeAddresses((), list)
    host = SessionHost("gateway", {}, {}, Security(), Bounds(), addresses)
    served = await host.start(LOOPBACK, "GatewayService")
    try:
        async with grpc.aio.insecure_channel(served) as channel:
            stub = GatewayServiceStub(channel)
            info = aip_pb2.AgentInfo(agent_id="m", address="127.0.0.1:1")
            update = aip_pb2.UpdateNodeInfoRequest(sender_id="m", peer=aip_pb2.Peer(agent_info=info))
            assert not (await stub.UpdateNodeInfo(update)).success
            with pytest.raises(OperationError):
                addresses.target("127.0.0.1:1")
            await stub.RegisterAgent(info)
            assert addresses.target("127.0.0.1:1") == "ipv4:127.0.0.1:1"
    finally:
        await host.stop()


@pytest.mark.threat(232)
async def test_003_74_an_agent_dials_no_other_form_of_an_address() -> None:
    async with nodes() as network, private_service() as (address, heard):
        agent = await network.agent("a")
        for form in (f"ipv4:{address}", f"dns://{address}/x:1", f"unix:{address}"):
            with pytest.raises(OperationError):
                await agent.call_tool("t", address=form)
        assert heard == []


@pytest.mark.threat(232)
def test_003_74_the_ends_of_connections_are_read() -> None:
    assert caller_ip("ipv4:203.0.113.9:4000") == AWAY
    assert caller_ip("ipv6:%5B::1%5D:4000") == ip_address("::1")
    assert caller_ip("ipv6:[::ffff:203.0.113.9]:4000") == AWAY
    assert [caller_ip(text) for text in ("unix:/run/x", "", "ipv4:", "ipv4:nonsense:1")] == [None] * 4
    assert parse_address("[::1]:1") == ("::1", 1)


@pytest.mark.threat(232)
async def test_003_74_kept_addresses_are_bounded() -> None:
    addresses = NodeAddresses((), lambda: ["127.0.0.1:1"])
    for port in range(1, MAX_KEPT + 2):
        addresses.keep(f"127.0.0.1:{port}", await addresses.check(f"127.0.0.1:{port}", HERE))
    assert addresses.target("127.0.0.1:1") == "ipv4:127.0.0.1:1"
    with pytest.raises(OperationError):
        addresses.target("127.0.0.1:2")


@pytest.mark.threat(232)
async def test_003_74_idle_connections_are_bounded() -> None:
    channels = Channels(Security(), [], lambda address: f"ipv4:{address}")
    channels_of = {}
    async with channels.use("127.0.0.1:1") as used:
        for port in range(2, MAX_IDLE + 3):
            async with channels.use(f"127.0.0.1:{port}") as channels_of[port]:
                pass
        # The one with a call and the newest ones are kept, the oldest one is closed.
        for port, is_open in ((1, True), (2, False), (MAX_IDLE + 2, True)):
            async with channels.use(f"127.0.0.1:{port}") as channel:
                assert (channel is {1: used, **channels_of}[port]) is is_open
    await channels.close()


async def test_003_74_tls_checks_the_name_and_not_the_address() -> None:
    authority = trustme.CA()

    def secured(name: str) -> Security:
        issued = authority.issue_cert(name)
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        return Security(certificate=(chain, issued.private_key_pem.bytes()), authority=authority.cert_pem.bytes())

    async with nodes() as network:
        gateway = await network.gateway(security=secured("127.0.0.1"))
        first = await network.agent("a", gateway, security=secured("127.0.0.1"))
        named = await network.agent("b", gateway, security=secured("localhost"), address="localhost:0")
        assert isinstance(info := gateway.get_registered_nodes()["b"], AgentInfo)
        assert info.address.startswith("localhost:")
        await begin(first, "b")
        assert told(await named.receive_inquiry()) == (SessionStatus.START_QUEST, "hello")
        # Its certificate is for another name than the one that it registered.
        await network.agent("c", gateway, security=secured("127.0.0.1"), address="localhost:0")
        session = await begin(first, "c")
        status, text = told(await first.receive_feedback(session, "c"))
        assert status is SessionStatus.STOP_RESPONSE
        assert "UNAVAILABLE" in text
