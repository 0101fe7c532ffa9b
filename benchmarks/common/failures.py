"""The ways in which a contender fails."""

from __future__ import annotations


class Red(Exception):
    """redblue gave a wrong result, so the benchmark prints no numbers."""


class Refused(Exception):
    """A contender does not support a call; the text is the reason."""


class PeerFailed(Exception):
    """A peer in another process raised an exception, or its process ended or did not answer."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(reason)
        self.peer = peer


def why(failure: Exception) -> str:
    """The reason why a contender does not run a call, in one line."""
    if isinstance(failure, (Refused, PeerFailed)):
        return str(failure)
    return ": ".join([type(failure).__name__, *str(failure).strip().splitlines()[:1]])
