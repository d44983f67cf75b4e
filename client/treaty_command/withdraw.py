"""`treaty withdraw`: withdraw a vote or a vouch. A report cannot be withdrawn: a newer report of the same agents replaces it."""

from __future__ import annotations

from cyclopts import App

from .context import Options
from .elections import cast
from .vouches import make_vouch

app = App(name="withdraw", help="Withdraw your vote in a topic, or a vouch.")


@app.command
def vote(topic: str, /, *, via: tuple[str, ...] = (), options: Options = Options()) -> None:
    """Withdraw your ballot in a topic.

    Parameters
    ----------
    topic
        Such as commerce/product-info.
    via
        URL#KEY of a witness that stamps the withdrawal, as of `treaty vote`. May be repeated.
    """
    cast(topic, (), options, via)


@app.command
def vouch(did: str, /, *, via: tuple[str, ...] = (), options: Options = Options()) -> None:
    """Withdraw a vouch. It stays in the public log, and counts no more.

    Parameters
    ----------
    did
        The agent that you vouched for.
    via
        URL#KEY of a witness that stamps the withdrawal, as of `treaty vote`. May be repeated.
    """
    make_vouch(did, withdrawn=True, via=via, options=options)
