"""Build a handler package from a model's answer: the files of a project, and their wheel.

The files are those of `treaty_client.protocols.project`, so a negotiated protocol is published like any other. Until then its URI
is a placeholder (`documents.NegotiatedDocument.uri`).
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from treaty_client.protocols.project import load_project
from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_handler import Value, decode_json
from treaty_io.codes import NegotiationCode

from .documents import NegotiatedDocument
from .test_cases import TestCase, parse_test_cases

# A handler is small. The caps bound the disk and the time of the build.
MAX_FILES = 16
MAX_SOURCE = 192 * 1024
"""Bytes of all files together."""
# One line in a list of protocols.
MAX_SUMMARY = 200

# Neither absolute paths nor `..` match, so no file is written outside of the folder.
_PATH = re.compile(r"(?:[a-z_][a-z0-9_]{0,31}/)?[a-z_][a-z0-9_]{0,31}\.py")


@dataclass(frozen=True)
class Written:
    """The code that a model wrote. `sources`: path inside the package → content. `cases`: its own test cases."""

    summary: str
    manifest: Mapping[str, Value]
    sources: Mapping[str, str]
    cases: tuple[TestCase, ...]


class _File(msgspec.Struct):
    path: str
    content: str


class _Answer(msgspec.Struct):
    summary: str
    manifest: str
    files: list[_File]
    test_cases: str


def read_written(value: Value) -> Written:
    """Read an answer of the schema. Raises `Malformed` or `TooLarge` (`negotiation.answer`)."""
    answer = msgspec.convert(value, _Answer)
    sources = {file.path: file.content for file in answer.files}
    if len(sources) != len(answer.files) or not 1 <= len(sources) <= MAX_FILES or "__init__.py" not in sources:
        raise Malformed(
            NegotiationCode.ANSWER, f"`files` are 1 to {MAX_FILES} files of different paths, `__init__.py` among them."
        )
    for path in sources:
        if not _PATH.fullmatch(path):
            raise Malformed(NegotiationCode.ANSWER, f"{ascii(path)[:80]} is not the path of a file such as messages.py.")
    # Checked before the files are written to the disk.
    if sum(map(len, sources.values())) > MAX_SOURCE:
        raise TooLarge(NegotiationCode.ANSWER, f"The files have more than {MAX_SOURCE} characters together.")
    try:
        manifest = decode_json(answer.manifest.encode("utf-8"))
    # The model gets the sentence and can correct its text.
    except ValueError as error:
        raise Malformed(NegotiationCode.ANSWER, f"`manifest` is no JSON text: {error}.") from error
    if not isinstance(manifest, dict) or manifest.keys() != {"operations", "roles"}:
        raise Malformed(NegotiationCode.ANSWER, "`manifest` is no object with exactly `operations` and `roles`.")
    summary = " ".join(answer.summary.split())[:MAX_SUMMARY]
    if not summary.isprintable():
        raise Malformed(NegotiationCode.ANSWER, "`summary` is not one line of text.")
    return Written(summary, manifest, sources, parse_test_cases(answer.test_cases))


def project_files(
    document: NegotiatedDocument, written: Written, *, topic: str, licence: str, vectors: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return the project, path → content. `topic`: "" if it cannot be published."""
    name = document.name
    entry_point = f"treaty_handler_{name.replace('-', '_')}:handler"
    toml = [
        ("name", name),
        ("version", "1.0"),
        ("topic", topic or f"negotiated/{name}"),
        ("origin", "negotiated"),
        ("title", document.title),
        ("summary", written.summary),
        ("licence", licence),
    ]
    lines = [f"{key} = {_quoted(value)}" for key, value in toml] + ["", "[handler]", f"entry-point = {_quoted(entry_point)}", ""]
    return {
        "protocol.toml": "\n".join(lines).encode("utf-8"),
        "document.md": document.text.encode("utf-8"),
        "manifest.json": json.dumps(written.manifest, ensure_ascii=False, indent=2).encode("utf-8") + b"\n",
        **{f"handler/{path}": content.encode("utf-8") for path, content in written.sources.items()},
        **{f"vectors/{name}": data for name, data in vectors.items()},
    }


def read_project(files: Mapping[str, bytes]) -> Written:
    """Return the code of a project that `project_files` made, without test cases."""
    sources = {path.removeprefix("handler/"): data.decode() for path, data in files.items() if path.startswith("handler/")}
    summary = str(tomllib.loads(files["protocol.toml"].decode()).get("summary", ""))
    manifest = decode_json(files["manifest.json"])
    assert isinstance(manifest, dict), "the project was built from it"
    return Written(summary, manifest, sources, ())


async def build(files: Mapping[str, bytes], uri: str) -> HandlerPackage:
    """Return the handler package of a project. Raises the errors of `load_project`, `Project.build_wheel` and `read_wheel`."""
    # In a thread, because building reads and writes files.
    return await asyncio.to_thread(_build, files, uri)


def _build(files: Mapping[str, bytes], uri: str) -> HandlerPackage:
    # A crash leaves a folder in the temporary directory, which holds no secret.
    with tempfile.TemporaryDirectory(prefix="treaty-negotiated-") as directory:
        folder = Path(directory)
        for path, content in files.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        return read_wheel(*load_project(folder).build_wheel(uri))


def _quoted(text: str) -> str:
    """Return a TOML basic string. For printable text it equals the JSON string."""
    return json.dumps(text, ensure_ascii=False)
