"""``apply_fused_kernels()``: the changes of the rules in a running program."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.project.kept.stored import Store
from npufix.advisor.runtime.process.hook import Hook, concerns, list_imported
from npufix.advisor.runtime.process.rebinding import by_file, rebind, restore
from npufix.advisor.runtime.process.switches import SwitchError, Switches, from_environment
from npufix.rewriters.write.user_folders import private_cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npufix.advisor.project.configuration import Configuration
    from npufix.advisor.runtime.process.reporting import Counts, RunSummary
    from npufix.advisor.runtime.source.selection import RuleSelection

ON = ("auto", "npu", "virtual-npu")
_DEVICES = Path("/dev")


def no_counts() -> Counts:
    """Return the counts of a process in which nothing has run."""
    return Counter(), Counter()


@dataclass
class Applied:
    """The changes that are in force, and what became of them."""

    hook: Hook | None
    why_not: str = ""
    """Why nothing is changed at all."""
    earlier: dict[str, str] = field(default_factory=dict)
    """Modules that were imported before and could not be changed, with the reason."""
    asked: tuple[Switches, str] = (Switches(), "")
    ran_before: Counts = field(default_factory=no_counts)
    """What had run before: an earlier application may have counted the same places."""

    def report(self) -> str:
        """Return what was replaced, what was not and why, as text."""
        from npufix.advisor.runtime.process.reporting import as_text

        return as_text(self.summary())

    def summary(self) -> RunSummary:
        """Return the same as data."""
        from npufix.advisor.runtime.process.reporting import summarize

        return summarize(self.hook, self.why_not, self.earlier, self.ran_before)

    def undo(self) -> None:
        """Change nothing any more, and give every function its own code back.

        What ran once, at the top level of a module, has run.
        """
        if self.hook is not None:
            self.hook.remove()
            alive = by_file()
            for module in self.hook.modules.values():
                if module.code is not None:
                    data = self.hook.sources[module.path]
                    restore(module, data, alive.get(module.path, ()))
        if _current == [self]:
            _current.clear()


_current: list[Applied] = []
"""At most one."""


def apply(
    said: Switches,
    on: str = "auto",
    *,
    project: Path | None = None,
    verify: bool = False,
    chip: str = "A2",
) -> Applied:
    """Change what is imported from now on, and the functions of what was imported before.

    ``project``: the folder whose configuration counts; ``verify``: only what is proven here.

    Raises:
        SwitchError: a switch means nothing, or other switches are in force already.

    """
    if on not in ON:
        raise SwitchError(f"on={on!r}", f"give one of {', '.join(ON)}")
    asked = (said, f"{on} {verify}")
    if _current:
        if _current[0].asked == asked:
            return _current[0]
        raise SwitchError("fused kernels are applied with other switches", "call .undo() first")
    off = said.off or from_environment().off
    why_not = "it is switched off" if off else why_unavailable(on)
    if why_not:
        return Applied(None, why_not, asked=asked)
    hook = _hook(said, project)
    if verify:
        from npufix.advisor.runtime.source.proving import make_prover

        hook.prover = make_prover(on, chip)
    from npufix.advisor.runtime.process.reporting import counts

    tables = sys.modules.get("npufix.advisor.runtime.calls.tables")
    if tables is not None:
        tables.TABLES.try_again()

    applied = Applied(hook, asked=asked, ran_before=counts())
    hook.install()
    _current.append(applied)
    _change_earlier(applied)
    return applied


def current() -> Applied | None:
    """Return what is in force in this process."""
    return _current[0] if _current else None


def why_unavailable(on: str) -> str:
    """Return why nothing is to be changed on this machine.

    Raises:
        SwitchError: an NPU was asked for and there is none.

    """
    if on == "virtual-npu":
        return ""
    lack = ""
    if not any(_DEVICES.glob("davinci[0-9]*")):
        lack = "there is no NPU (/dev/davinci*)"
    elif find_spec("torch_npu") is None:
        lack = "torch_npu is not installed"
    if lack and on == "npu":
        raise SwitchError(f"on={on!r}: {lack}", "leave it out to run without changes there")
    return lack


@dataclass(frozen=True, slots=True)
class _Project:
    """What the configuration of the project says about single files."""

    configuration: Configuration

    def narrowed(self, path: str, selection: RuleSelection) -> RuleSelection | None:
        """Return what is wanted in a file, ``None`` if it is left out."""
        file = Path(path)
        if self.configuration.excludes(file):
            return None
        ignored = self.configuration.find_ignored(file)
        if not ignored:
            return selection
        more = Switches(disable=tuple(ignored)).selection().without
        return dataclasses.replace(selection, without=selection.without | more)


def select(said: Switches, folder: Path | None = None) -> RuleSelection:
    """Return what is meant by what was said here, by the environment, and by the project.

    Raises:
        SwitchError: a switch means nothing.

    """
    project = _project(folder)
    own = Switches(tuple(project.select), tuple(project.ignore), tuple(project.allow))
    spoken = from_environment().merged(said)
    chosen = own.merged(spoken).selection()
    # What a project selects it wants to hear of; that is not to vouch for it.
    return dataclasses.replace(chosen, named=spoken.named() - chosen.without)


def _project(folder: Path | None) -> Configuration:
    from npufix.advisor.project.configuration import EVERYTHING, read_configuration

    return EVERYTHING if folder is None else read_configuration(folder)


def _hook(said: Switches, folder: Path | None) -> Hook:
    """Return a hook for what is meant."""
    project, chosen = _project(folder), select(said, folder)
    narrowed = _Project(project).narrowed if project.folder is not None else None
    return Hook(chosen, Store(private_cache_folder("running")), narrowed)


def _change_earlier(applied: Applied) -> None:
    """Change the functions of the modules that are there already."""
    hook = applied.hook
    if hook is None:
        return
    wanted: dict[str, tuple[str, bytes]] = {}
    for name, path in list_imported().items():
        try:
            data = Path(path).read_bytes()
        except OSError:
            continue
        if concerns(name, path, data):
            wanted[name] = (path, data)
    if not wanted:
        return
    alive = by_file()
    for name, (path, data) in wanted.items():
        new = hook.rewritten(name, path, data)
        if new is None or new.code is None:
            continue
        missed = rebind(new, data, alive.get(path, ()))
        if missed:
            applied.earlier[name] = f"imported before, and not what its file says: {_some(missed)}"


def _some(found: Iterable[str]) -> str:
    several = sorted(found)
    more = f" and {len(several) - 3} more" if len(several) > 3 else ""  # noqa: PLR2004 - shown
    return ", ".join(several[:3]) + more
