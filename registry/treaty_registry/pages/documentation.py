"""The documentation, which `make site` built into an archive beside this package. A wheel carries it.

A request names a member of the archive, and no file of the disk. So no path leads out of it.
"""

from __future__ import annotations

import asyncio
import io
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from treaty_consensus.errors import NotFound

from ..codes import HttpCode
from ..serving.representation import HTML, SVG, TEXT, PackedRepresentation
from .renderer import HEADERS

if TYPE_CHECKING:
    from ..serving.representation import Representation

ARCHIVE = Path(__file__).parents[1] / "site.zip"
_TYPES = {
    ".html": HTML,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": SVG,
    ".png": "image/png",
    ".json": "application/json",
    ".whl": "application/octet-stream",
}
ROOT = "/docs/"


class Documentation:
    """The files of a site. One per process, on one event loop. All files together bound its memory."""

    def __init__(self, archive: Path = ARCHIVE) -> None:
        """`archive`: the built site, or a path where nothing is."""
        # The whole archive is read, so a build while the registry runs does not change the file under it.
        self._zip = zipfile.ZipFile(io.BytesIO(archive.read_bytes())) if archive.is_file() else None
        self._members = {member.filename: member for member in self._zip.infolist()} if self._zip else {}
        self._shown: dict[str, PackedRepresentation] = {}

    def folder(self, path: str) -> str | None:
        """Return the path of a folder with the slash that it lacks, or None if it is no folder."""
        return f"{path}/" if f"{path}/index.html".removeprefix(ROOT) in self._members else None

    async def get(self, path: str) -> Representation:
        """Return the file at a path, or the first page of a folder whose path ends in a slash. Raises `NotFound`."""
        name = (f"{path}index.html" if path.endswith("/") else path).removeprefix(ROOT)
        cached = self._shown.get(name)
        if cached is not None:
            return cached
        if self._zip is None:
            raise NotFound(
                HttpCode.NOT_FOUND,
                "This registry carries no documentation.",
                fix="Read the folder `docs` of the repository. The operator can add the site: `make site` there builds it, and a "
                "registry that is started again serves it.",
            )
        member = self._members.get(name)
        if member is None:
            raise NotFound(HttpCode.NOT_FOUND, "The documentation has no such page.", fix=f"Begin at {ROOT}.")
        # Packing the search index takes a tenth of a second, in which the loop must answer others.
        represented = await asyncio.to_thread(_represented, name, self._zip, member)
        self._shown[name] = represented
        return represented


def _represented(name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> PackedRepresentation:
    # An unknown type is text: an example of code is read, and never run.
    return PackedRepresentation(archive.read(member), _TYPES.get(PurePosixPath(name).suffix, TEXT), *HEADERS, level=9)
