"""Why a comparison ends early: no verdict, or a difference."""

from __future__ import annotations


class NotVerifiedError(Exception):
    """There is no verdict; the message says why."""


class GroundLimitError(NotVerifiedError):
    """The ground cannot run it, whatever the code is; another may."""


class RefutedError(Exception):
    """The two are different; the message says in what."""

    def __init__(self, message: str, script: str = "") -> None:
        super().__init__(message)
        self.script = script
        """A program that shows it."""
