"""The nodes of the example. `python nodes.py NAME GATEWAY` is one of them, until its standard input ends.

It prints a line of JSON for its address, and one for each content that it sends or receives.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import math
import struct
import sys
import wave
import zlib
from collections.abc import AsyncIterator
from typing import Any

from treaty_aip import Agent, AgentMessage, AgentSkill, ContentItem, Gateway, Mode, SessionStatus, Tool, ToolRequest, ToolResponse

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


def tell(**event: Any) -> None:
    """Print an event."""
    print(json.dumps(event), flush=True)


def note(side: str, sender: str, receiver: str, items: list[ContentItem]) -> None:
    """Tell which contents one node sent to another, or received from it."""
    for item in items:
        contents = {"text": item.text, "image": item.image, "audio": item.audio}
        ((mode, content),) = ((mode, content) for mode, content in contents.items() if content is not None)
        data = content.encode() if isinstance(content, str) else content
        about = {"from": sender, "to": receiver, "mode": mode, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        tell(**{side: about | ({"text": content} if mode == "text" else {})})


async def answer(agent: Agent, inquiry: AgentMessage, content: Any, modes: Any = None) -> None:
    """Answer an inquiry."""
    note("sent", agent.agent_id, inquiry.sender_id, agent.create_content_items(content, modes))
    await agent.submit_feedback(inquiry.session_id, inquiry.sender_id, content, modes)


async def inquiries(agent: Agent) -> AsyncIterator[AgentMessage]:
    """Yield each inquiry."""
    while True:
        inquiry = await agent.receive_inquiry()
        note("received", inquiry.sender_id, agent.agent_id, inquiry.content)
        yield inquiry


def draw(request: ToolRequest) -> ToolResponse:
    """Answer with the image of a colour."""
    red, green, blue = (int(part) for part in request.arguments["colour"].split(","))
    content = [ContentItem.write_image(paint(red, green, blue))]
    note("sent", "draw", request.sender_id, content)
    return ToolResponse(content=content)


async def painter(agent: Agent) -> None:
    """Answer each inquiry with an image from the tool."""
    async for inquiry in inquiries(agent):
        drawn = await agent.call_tool("draw", inquiry.session_id, arguments={"colour": inquiry.content[0].text})
        note("received", "draw", agent.agent_id, drawn.content)
        if drawn.is_error:
            await answer(agent, inquiry, drawn.error_message)
        else:
            await answer(agent, inquiry, drawn.content[0].image, Mode.IMAGE)


async def singer(agent: Agent) -> None:
    """Answer each inquiry with a sound, and a caption."""
    handlers = [lambda message: sound(int(message.content[0].text)), lambda message: f"{message.content[0].text} Hz"]
    async for inquiry in inquiries(agent):
        answers = await agent.invoke_session_handlers(inquiry.session_id, handlers)
        await answer(agent, inquiry, answers, [Mode.AUDIO, Mode.TEXT])


async def ask(agent: Agent, receiver: str, *texts: str) -> list[ContentItem]:
    """Ask another agent, one inquiry after the other, with the last one stop the session; the contents of all answers."""
    session, items = await agent.create_agent_client(receiver), list[ContentItem]()
    for text in texts:
        note("sent", agent.agent_id, receiver, agent.create_content_items(text))
        # A session begins with START_QUEST, so its only inquiry is not the one that stops it.
        stops = text is texts[-1] and text is not texts[0]
        await agent.submit_inquiry(session, receiver, text, session_status=SessionStatus.STOP_QUEST if stops else None)
        message = await agent.receive_feedback(session, receiver)
        note("received", receiver, agent.agent_id, message.content)
        items += message.content
    await agent.close_agent_client(session, receiver)
    return items


async def editor(agent: Agent) -> None:
    """Ask for images and sounds."""
    images, sounds = await asyncio.gather(ask(agent, "painter", "255,0,0", "0,0,255"), ask(agent, "singer", "440", "880"))
    sizes = {"image_bytes": len(images[0].image or b""), "sound_bytes": len(sounds[0].audio or b"")}
    tell(average=(await agent.call_tool("average", arguments=sizes)).content[0].text)
    tell(done=True)


AGENTS = {"painter": painter, "singer": singer, "editor": editor}


async def end_of_input() -> None:
    """Wait for the end of the standard input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def run(name: str, gateway: str) -> None:
    """Be one node until the standard input ends."""
    if name == "gateway":
        node: Gateway | Agent | Tool = await Gateway(ANY_PORT, "example").start()
    elif name in AGENTS:
        node = await Agent(ANY_PORT, name, output_mode=list(Mode), skills=[AgentSkill(name, AGENTS[name].__doc__ or "")]).start()
        await node.register_to_gateway(gateway)
    else:
        tool = Tool.creat_function_tool(average, ANY_PORT) if name == "average" else Tool(ANY_PORT, "draw")
        node = await (tool if name == "average" else tool.set_process_request_handler(draw)).start()
        await node.register_to_gateway(gateway)
    tell(address=node.address)
    try:
        # The failure of an agent's work ends the wait for the input as well.
        async with asyncio.TaskGroup() as group:
            working = group.create_task(AGENTS[name](node)) if isinstance(node, Agent) else None
            await end_of_input()
            if working is not None:
                working.cancel()
    finally:
        await node.stop()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
