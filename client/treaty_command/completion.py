"""`treaty completion`: completion of commands and options in a shell."""

from __future__ import annotations

from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the completion script of a shell.

    In bash: `source <(treaty completion bash)`. The scripts for zsh and fish belong in a file of a folder that these shells read.

    Parameters
    ----------
    shell
        The shell.
    """
    from .commands import app  # here, because that module names this one

    print(app.generate_completion(shell=shell))
