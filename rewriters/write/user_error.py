"""What a user can do something about."""

from __future__ import annotations


class UserError(Exception):
    """``message`` says what is wrong and where, ``remedy`` what to do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
