"""Runs inside the environment of the official SDK: how it reads agent descriptions, one call a line."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import anp  # type: ignore[import-not-found]
from anp.anp_crawler.anp_crawler import ANPCrawler  # type: ignore[import-not-found]
from anp.authentication import create_did_wba_document  # type: ignore[import-not-found]

logging.disable(logging.CRITICAL)


def _module(path: str) -> ModuleType:
    """A module of the SDK by itself: its package would want a web framework."""
    root = Path(next(iter(anp.__path__)))
    spec = importlib.util.spec_from_file_location(Path(path).stem, root / path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODELS = _module("fastanp/models.py")
OPENRPC = _module("openanp/client/openrpc.py")


def crawl(url: str) -> dict[str, Any]:
    """What the SDK's crawler, signing as an agent of its own, gets at a URL, and the interfaces that its parser finds there."""
    document, keys = create_did_wba_document("crawler.example", path_segments=["a"])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "did.json").write_text(json.dumps(document))
        (Path(folder) / "key.pem").write_bytes(keys["key-1"][0])
        crawler = ANPCrawler(f"{folder}/did.json", f"{folder}/key.pem")
        content, tools = asyncio.run(crawler.fetch_text(url))
    parsed = crawler._parser.parse_document(content["content"], "application/json", url)
    return {"content": content["content"], "interfaces": parsed["interfaces"], "tools": tools}


def model(document: dict[str, Any]) -> dict[str, Any]:
    """What the SDK's own model of an agent description keeps of a document, which it validates."""
    members: dict[str, Any] = MODELS.AgentDescription.model_validate(document).model_dump(exclude_none=True)
    return members


def methods(document: dict[str, Any]) -> list[Any]:
    """The OpenRPC methods that the SDK's client finds in a document."""
    return list(OPENRPC.parse_agent_document(document)[1])


FUNCTIONS: dict[str, Callable[..., Any]] = {function.__name__: function for function in (crawl, model, methods)}

if __name__ == "__main__":
    out = sys.stdout
    sys.stdout = sys.stderr  # what the SDK prints is not an answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": FUNCTIONS[request["call"]](**request["arguments"])}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=out, flush=True)
