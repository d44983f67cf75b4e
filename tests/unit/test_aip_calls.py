"""The gRPC side of a session of AIP, when the session itself fails."""

from __future__ import annotations

import logging

import grpc
import pytest

from treaty_aip.calls import Bounds, IncomingCalls, path_of
from treaty_aip.flow import Flow, Waiting
from treaty_aip.handler.frames import Frame
from treaty_aip.security import CallerProofs, Security


@pytest.mark.parametrize("failing", ["Heartbeat", "RouteAgentCalling"])
async def test_a_call_that_the_session_cannot_read_ends(failing: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(peer: str, frame: Frame) -> list[Flow]:
        if frame.kind == "REQUEST":
            raise RuntimeError("a defect")
        return []

    incoming, server = IncomingCalls(fail, Bounds(), None, Waiting()), grpc.aio.server()
    server.add_generic_rpc_handlers(incoming.handlers([failing]))
    port = server.add_insecure_port("127.0.0.1:0")
    incoming.proofs = CallerProofs(Security(), f"127.0.0.1:{port}")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error, caplog.at_level(logging.ERROR):
                if failing == "Heartbeat":
                    await channel.unary_unary(path_of(failing))(b"", timeout=30)
                else:
                    call = channel.stream_stream(path_of(failing))(timeout=30)
                    await call.write(b"")
                    await call.read()
        assert error.value.code() is grpc.StatusCode.INTERNAL
        assert "a defect" in caplog.text
    finally:
        await server.stop(None)
        incoming.proofs.close()
