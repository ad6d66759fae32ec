"""Pseudonyms: the same name has the same one everywhere in a run, and another in the next run."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter

GENERIC = frozenset(
    {
        "admin", "administrator", "ascend", "container", "data", "default", "docker", "guest",
        "home", "host", "hwhiaiuser", "jenkins", "linux", "local", "localhost", "ma-user", "main",
        "model", "node", "nobody", "npu", "opt", "public", "root", "server", "share", "shared",
        "src", "sys", "system", "test", "tmp", "train", "train.py", "ubuntu", "user", "users",
        "usr", "var", "work", "worker", "workspace",
    }
)  # fmt: skip
"""Names that are nobody's, or words of their own: not looked for in other texts."""
_SHORTEST = 3


class Pseudonyms:
    """Gives names their pseudonyms, and knows what it has replaced."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(16)
        self._given: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()
        self.counts: Counter[str] = Counter()
        """How often something of a kind was replaced."""
        self.names: dict[str, str] = {}
        """Words to replace wherever they stand, in lower case, and their kind: hosts and users."""

    def learn(self, kind: str, name: str) -> None:
        """Note a name that is to be replaced wherever it stands."""
        name = name.strip().lower()
        if len(name) >= _SHORTEST and name not in GENERIC and not name.isdigit():
            self.names.setdefault(name, kind)

    def of(self, kind: str, name: str) -> str:
        """Return the pseudonym, ``host-3f9a1c``."""
        return f"{kind}-{self._code(kind, name.lower())}"

    def folder(self, name: str) -> str:
        """Return the pseudonym of one folder of a path."""
        return f"d{self._code('folder', name)}"

    def number(self, kind: str, name: str) -> int:
        """Return which of its kind a name is, from 1 on."""
        known = [key for key in self._given if key[0] == kind]
        key = (kind, name)
        if key not in self._given:
            self._given[key] = str(len(known) + 1)
        return int(self._given[key])

    def count(self, kind: str) -> None:
        """Note that one of the kind was replaced."""
        self.counts[kind] += 1

    def _code(self, kind: str, name: str) -> str:
        key = (kind, name)
        if key not in self._given:
            data = f"{kind}\0{name}".encode("utf-8", "surrogateescape")
            full = hashlib.blake2b(data, key=self._salt).hexdigest()
            length = 6
            while full[:length] in self._taken:
                length += 2
            self._taken.add(full[:length])
            self._given[key] = full[:length]
        return self._given[key]
