"""Write the files of a project that passes its check, or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from treaty_client.authoring.check import check_project
from treaty_client.authoring.document import write_document
from treaty_client.authoring.new_project import write_files
from treaty_client.protocols.project import DOCUMENT


async def write_checked(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write a project, path → text, and return its files. The document gets its generated part. Raises `Conflict`
    (`system.exists`), and `ValueError` with the first problem of the check; no file is written then."""
    with TemporaryDirectory() as scratch:
        # The rules are those of every project, so it is one, before it is the author's.
        place = Path(scratch) / "project"
        write_files(place, files)
        write_document(place)
        check = await check_project(place)
        if not check.passed:
            raise ValueError([*(problem.error.message for problem in check.problems), *map(str, check.mismatches)][0])
        document = (place / DOCUMENT).read_text(encoding="utf-8")
    return write_files(folder, {**files, DOCUMENT: document})
