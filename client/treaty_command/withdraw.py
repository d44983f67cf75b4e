"""`treaty withdraw`: withdraw a vote or a vouch. A report cannot be withdrawn: a newer report of the same agents replaces it."""

from __future__ import annotations

from cyclopts import App

from .context import Options
from .elections import cast
from .grants import make_vouch
from .values import DidText, Topic, Via

app = App(name="withdraw", help="Withdraw your vote in a topic, or a vouch.")


@app.command
def vote(topic: Topic, /, *, via: Via = (), options: Options = Options()) -> None:
    """Withdraw your ballot in a topic.

    Parameters
    ----------
    topic
        Such as commerce/product-info.
    """
    cast(topic, (), options, via)


@app.command
def vouch(did: DidText, /, *, via: Via = (), options: Options = Options()) -> None:
    """Withdraw a vouch. It stays in the public log, and counts no more.

    Parameters
    ----------
    did
        The agent that you vouched for.
    """
    make_vouch(did, withdrawn=True, via=via, options=options)
