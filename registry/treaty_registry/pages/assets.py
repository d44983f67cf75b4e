"""Style sheets, scripts and pictures of the pages, each at a path with its own hash, so that browsers keep it for ever."""

from __future__ import annotations

from pathlib import Path

from treaty_consensus.canonical import hex_digest

from ..cache_control import IMMUTABLE
from ..serving.cache import ResponseCache
from ..serving.representation import SVG, PackedRepresentation

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": SVG,
    ".txt": "text/plain; charset=utf-8",
}


class Assets:
    """The files of `static`, read once. Safe for concurrent use."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._paths: dict[str, str] = {}
        self.files: dict[str, PackedRepresentation] = {}
        """Each file by its path."""
        for file in sorted(folder.iterdir()):
            if file.suffix not in _TYPES:
                continue
            data = file.read_bytes()
            path = f"/static/{file.stem}-{hex_digest(data)[:16]}{file.suffix}"
            self._paths[file.name] = path
            self.files[path] = PackedRepresentation(data, _TYPES[file.suffix], cache_control=IMMUTABLE, level=9)

    def path(self, name: str) -> str:
        """Return the path of a file. Raises `KeyError` for an unknown one."""
        return self._paths[name]

    def keep_in(self, memory: ResponseCache) -> None:
        """Put all files into a cache, where `fast_path` finds them."""
        for path, file in self.files.items():
            memory.keep(path, file)

    def get(self, path: str) -> PackedRepresentation | None:
        """Return the file at a path, or None."""
        return self.files.get(path)
