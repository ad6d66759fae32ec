"""``npufix doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.console.loudness import is_quiet, is_verbose
from npufix.advisor.console.speaking import say

if TYPE_CHECKING:
    from npufix.reports.terminal.doctor import MachineReport
    from npufix.rewriters.verification.workers.machine import Machine

_WHAT = {
    "npu": "the kernels of the device, and their times",
    "virtual-npu": "the real torch_npu with its checks, reference kernels below it",
    "reference": "torch on CPU; operators of torch_npu are reference kernels behind their schemas",
}

# What npufix works with, then what some options need.
_PACKAGES = (
    "pandas", "pyarrow", "scipy", "libcst", "msgspec", "click", "rich", "jinja2",
    "distributed", "XlsxWriter", "transformers",
)  # fmt: skip


@click.command(
    epilog="""\b
Examples:
  npufix doctor
  npufix doctor --json"""
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(*, as_json: bool) -> None:
    """Say what changes can be verified on here, and what to install for more.

    Nothing of torch is imported or executed: the installed packages, folders and devices are
    looked at, and the libraries for a virtual NPU are written if torch_npu is there.
    """
    from npufix.advisor.console.screen import make_console
    from npufix.reports.terminal.doctor import headline, show, to_json
    from npufix.rewriters.verification.workers.backends import try_virtual_npu
    from npufix.rewriters.verification.workers.machine import survey

    found = _diagnosis(try_virtual_npu(survey()))
    if as_json:
        common.print_json(to_json(found))
    elif is_quiet():
        say(headline(found), err=False)
    else:
        show(found, make_console())


def _find_installed_version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _diagnosis(machine: Machine) -> MachineReport:
    from npufix.reports.report import tool
    from npufix.reports.terminal.doctor import GroundLine, MachineReport, Part
    from npufix.rewriters.verification.workers.backends import check_backends, choose_backend
    from npufix.rewriters.verification.workers.cache import user_folder

    cann = f"{machine.cann_version or 'unknown version'} in {machine.cann}"
    cann += "" if machine.cann_loaded else ", its environment is not set"
    parts = [
        Part("npufix", tool().partition(" ")[2]),
        Part("Python", f"{machine.python} on {machine.system}"),
        Part("torch", machine.torch or "not installed"),
        Part("torch_npu", machine.torch_npu or "not installed"),
        Part("CANN", cann if machine.cann else "not found"),
        Part("NPU", f"{machine.devices} devices" if machine.devices else "none"),
        Part("walls", _describe_sandbox()),
        Part("verdicts", str(user_folder())),
        *(
            Part(name, _find_installed_version(name))
            for name in (_PACKAGES if is_verbose() else ())
        ),
    ]
    grounds = [
        GroundLine(s.ground.value, s.usable, _WHAT[s.ground.value], s.missing, s.remedy)
        for s in check_backends(machine)
    ]
    return MachineReport(tool(), parts, grounds, choose_backend(machine).value, _warnings(machine))


def _describe_sandbox() -> str:
    """Return what keeps code that is verified away from files and processes."""
    from npufix.rewriters.verification.sandbox import landlock, system_calls

    has = {"Landlock": bool(landlock.version()), "seccomp": system_calls.is_there()}
    there = ", ".join(name for name, found in has.items() if found)
    missing = " and ".join(name for name, found in has.items() if not found)
    if not missing:
        return there
    return f"{there or 'none'}; without {missing}: verify foreign code in a container"


def _warnings(machine: Machine) -> list[str]:
    found = []
    if machine.breaks_import:
        found.append(
            "torch_npu is installed without the environment of CANN: a plain `import torch` fails"
            " unless TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set. npufix sets it for its own processes."
        )
    wanted, have = machine.wanted_torch, machine.torch.partition("+")[0]
    if wanted and have and wanted != have:
        found.append(f"torch_npu {machine.torch_npu} is made for torch {wanted}, not for {have}.")
    return found
