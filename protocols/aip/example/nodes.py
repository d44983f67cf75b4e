"""The nodes of the example. Each runs in a process of its own until its standard input ends."""

from __future__ import annotations

import asyncio
import io
import math
import struct
import sys
import wave
import zlib

from treaty_aip import Agent, AgentSkill, ContentItem, Gateway, Mode, SessionStatus, Tool, ToolRequest, ToolResponse

ANY_PORT = "127.0.0.1:0"


def paint(red: int, green: int, blue: int, size: int = 8) -> bytes:
    """Return a square of one colour as PNG."""
    rows = b"".join(b"\0" + bytes((red, green, blue)) * size for _ in range(size))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def sound(frequency: int, seconds: float = 0.1) -> bytes:
    """Return a tone as WAV."""
    rate, file = 8000, io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(rate)
        count = int(rate * seconds)
        samples = (int(8000 * math.sin(2 * math.pi * frequency * each / rate)) for each in range(count))
        written.writeframes(b"".join(struct.pack("<h", each) for each in samples))
    return file.getvalue()


def average(image_bytes: int, sound_bytes: int) -> float:
    """Return the mean of two sizes."""
    return (image_bytes + sound_bytes) / 2


def draw(request: ToolRequest) -> ToolResponse:
    """Answer with the image of a colour."""
    red, green, blue = (int(part) for part in request.arguments["colour"].split(","))
    return ToolResponse(content=[ContentItem.write_image(paint(red, green, blue))])


async def painter(agent: Agent) -> None:
    """Answer each inquiry with an image from the tool."""
    while True:
        inquiry = await agent.receive_inquiry()
        drawn = await agent.call_tool("draw", inquiry.session_id, arguments={"colour": inquiry.content[0].text})
        if drawn.is_error:
            await agent.submit_feedback(inquiry.session_id, inquiry.sender_id, drawn.error_message)
        else:
            image = drawn.content[0].image or b""
            await agent.submit_feedback(inquiry.session_id, inquiry.sender_id, image, Mode.IMAGE)


async def singer(agent: Agent) -> None:
    """Answer each inquiry with a sound, and a caption."""
    handlers = [lambda message: sound(int(message.content[0].text)), lambda message: f"{message.content[0].text} Hz"]
    while True:
        inquiry = await agent.receive_inquiry()
        answers = await agent.invoke_session_handlers(inquiry.session_id, handlers)
        await agent.submit_feedback(inquiry.session_id, inquiry.sender_id, answers, [Mode.AUDIO, Mode.TEXT])


async def ask(agent: Agent, receiver: str, *texts: str) -> list[ContentItem]:
    """Ask another agent, one inquiry after the other, and stop the session; the contents of all answers."""
    session, found = await agent.create_agent_client(receiver), list[ContentItem]()
    for text in texts:
        await agent.submit_inquiry(session, receiver, text)
        found += (await agent.receive_feedback(session, receiver)).content
    await agent.submit_inquiry(session, receiver, texts[-1], session_status=SessionStatus.STOP_QUEST)
    last = await agent.receive_feedback(session, receiver)
    assert last.session_status is SessionStatus.STOP_RESPONSE
    await agent.close_agent_client(session, receiver)
    return found + last.content


async def editor(agent: Agent) -> None:
    """Ask for images and a sound, and tell what came."""
    await agent.update_peers()
    print("nodes:", ", ".join(sorted(agent.get_nodes())), flush=True)
    images, sounds = await asyncio.gather(ask(agent, "painter", "255,0,0", "0,0,255"), ask(agent, "singer", "440"))
    for image in images:
        print("image:", len(image.image or b""), "bytes", (image.image or b"")[1:4].decode(), flush=True)
    for each in sounds:
        print("text:" if each.text else "audio:", each.text or f"{len(each.audio or b'')} bytes", flush=True)
    sizes = {"image_bytes": len(images[0].image or b""), "sound_bytes": len(sounds[0].audio or b"")}
    print("average:", (await agent.call_tool("average", arguments=sizes)).content[0].text, flush=True)
    print("done", flush=True)


AGENTS = {"painter": painter, "singer": singer, "editor": editor}


async def run(name: str, gateway: str) -> None:
    """Be one node until the standard input ends. The first line that it prints is its address."""
    if name == "gateway":
        node: Gateway | Agent | Tool = await Gateway(ANY_PORT, "example").start()
    elif name in AGENTS:
        node = await Agent(ANY_PORT, name, output_mode=list(Mode), skills=[AgentSkill(name, AGENTS[name].__doc__ or "")]).start()
        await node.register_to_gateway(gateway)
    else:
        made = Tool.creat_function_tool(average, ANY_PORT) if name == "average" else Tool(ANY_PORT, "draw")
        node = await (made if name == "average" else made.set_process_request_handler(draw)).start()
        await node.register_to_gateway(gateway)
    print(node.address, flush=True)
    working = asyncio.create_task(AGENTS[name](node)) if isinstance(node, Agent) else None
    await asyncio.to_thread(sys.stdin.read)
    if working is not None:
        working.cancel()
    await node.stop()
