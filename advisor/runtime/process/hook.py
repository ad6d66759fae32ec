"""Changing modules as they are imported.

Every Python file that is imported is compiled by ``SourceFileLoader.get_code``, however the import
came about: by name, by path as transformers loads remote code, by ``python -m``, by ``reload``.
That one method is replaced. Finders, loaders and ``__spec__`` stay Python's own, the ``.pyc`` is
that of the file, and what goes wrong here costs no more than the change.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import sysconfig
import threading
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

from npufix.advisor.runtime.source.rewriting import RewrittenModule, rewrite_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from npufix.advisor.project.kept.stored import Store
    from npufix.advisor.runtime.source.proving import Prover
    from npufix.advisor.runtime.source.selection import RuleSelection

_LEFT_ALONE = frozenset({"torch", "torch_npu", "npufix", "functorch", "torchgen", "triton"})
# The first line may begin with a byte order mark.
_IMPORTS_TORCH = re.compile(
    rb"^(?:\xef\xbb\xbf)?[ \t]*(?:import|from)[ \t][^\n#]*\btorch\b", re.MULTILINE
)
_STANDARD = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")


@dataclass
class Hook:
    """The changes of one selection, made in every module that is imported while it is there."""

    selection: RuleSelection
    store: Store | None
    narrowed: Callable[[str, RuleSelection], RuleSelection | None] | None = None
    """What the project says about a file: other rules than elsewhere, or none at all."""
    prover: Prover | None = None
    """Proves each change before it is made, if that is wanted."""
    modules: dict[str, RewrittenModule] = field(default_factory=dict)
    """What was found in each module, by its name."""
    sources: dict[str, bytes] = field(default_factory=dict)
    """What the files held that were changed, by path."""
    _busy: threading.local = field(default_factory=threading.local)
    _original: Any = None

    def install(self) -> None:
        """Change what is imported from now on."""
        if self._original is None:
            self._original = SourceFileLoader.get_code
            SourceFileLoader.get_code = _replace(self, self._original)  # type: ignore[method-assign]

    def remove(self) -> None:
        """Import everything as it is again; what was changed stays changed."""
        if self._original is not None:
            SourceFileLoader.get_code = self._original  # type: ignore[method-assign]
            self._original = None

    def rewritten(self, name: str, path: str, data: bytes) -> RewrittenModule | None:
        """Return what becomes of a module, ``None`` if it is none of those that are changed."""
        if getattr(self._busy, "now", False) or not concerns(name, path, data):
            return None
        self._busy.now = True  # what the rules import on the way stays as it is
        found = RewrittenModule(path, "", (), (), None)
        try:
            selection: RuleSelection | None = self.selection
            if self.narrowed is not None:
                selection = self.narrowed(path, self.selection)
            if selection is None:
                return None
            found = rewrite_module(path, data, selection, self.store, self.prover)
        except Exception as error:  # noqa: BLE001 - the import goes on without the change
            said = f"internal error: {type(error).__name__}: {error}"
            found = dataclasses.replace(found, problem=said)
        finally:
            self._busy.now = False
        if found.places or found.problem:
            self.modules[name] = found
        if found.code is not None:
            self.sources[path] = data
        return found


def concerns(name: str, path: str, data: bytes) -> bool:
    """Tell whether a module may hold code to change: it imports torch, and is not part of it."""
    if name.partition(".")[0] in _LEFT_ALONE or _is_standard(path):
        return False
    return b"torch" in data and _IMPORTS_TORCH.search(data) is not None


def _is_standard(path: str) -> bool:
    return path.startswith(_STANDARD) and not any(part in path for part in _INSTALLED)


def _replace(hook: Hook, original: Any) -> Any:  # noqa: ANN401 - a method of importlib
    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        code: CodeType | None = original(self, fullname)
        if fullname.partition(".")[0] in _LEFT_ALONE:
            return code
        try:
            path = self.get_filename(fullname)
            data = self.get_data(path)
        except OSError:  # compiled code without its source
            return code
        found = hook.rewritten(fullname, path, data)
        return code if found is None or found.code is None else found.code

    return get_code


def list_imported() -> dict[str, str]:
    """Return the modules that were imported already, with the files they came from."""
    found: dict[str, str] = {}
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and id(module) not in seen:
            seen.add(id(module))  # one may be there under two names
            found[name] = path
    return found
