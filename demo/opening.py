"""The three lines with which `make run` opens and `make demo` ends."""

from __future__ import annotations


def opening(port: int) -> str:
    """Return the address of the page, the next command, and how to stop, for a registry of `make run` on `port`."""
    url = f"http://127.0.0.1:{port}"
    return (
        f"  Page:  {url}/\n"
        f"  Next:  .venv/bin/treaty trust add {url} --yes && .venv/bin/treaty topics    (in another shell)\n"
        "  Stop:  Ctrl-C"
    )
