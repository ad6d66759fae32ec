"""``npufix doctor`` and the choice of a ground, on machines of every kind."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npufix.rewriters.verification.virtual_npu import VirtualNpuError
from npufix.rewriters.verification.workers import backends
from npufix.rewriters.verification.workers.backends import (
    Backend,
    BackendError,
    check_backends,
    choose_backend,
)
from npufix.rewriters.verification.workers.machine import Machine, survey

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

BARE = Machine("3.11.7", "Linux x86_64")
TORCH = replace(BARE, torch="2.7.1+cpu")
WHEEL = replace(TORCH, torch_npu="2.7.1", wanted_torch="2.7.1")
LOADED = replace(WHEEL, cann="/usr/local/Ascend/ascend-toolkit/latest", cann_loaded=True)
DEVICE = replace(LOADED, devices=8)


@pytest.fixture
def every_ground(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_BUILT", frozenset(Backend))


@pytest.mark.usefixtures("every_ground")
@pytest.mark.parametrize(
    ("machine", "chosen"),
    [
        (BARE, Backend.NONE),
        (TORCH, Backend.REFERENCE),
        (WHEEL, Backend.VIRTUAL_NPU),
        (LOADED, Backend.VIRTUAL_NPU),
        (DEVICE, Backend.NPU),
        (replace(WHEEL, system="Darwin arm64"), Backend.REFERENCE),
        (replace(DEVICE, cann_loaded=False), Backend.VIRTUAL_NPU),
    ],
)
def test_the_ground_that_says_most_is_chosen(machine: Machine, chosen: Backend) -> None:
    assert choose_backend(machine) is chosen


@pytest.mark.usefixtures("every_ground")
@pytest.mark.parametrize(
    ("machine", "wanted", "missing", "remedy"),
    [
        (BARE, "reference", "torch is not installed", "npufix[verify]"),
        (TORCH, "npu", "no NPU", "Ascend"),
        (TORCH, "virtual-npu", "torch_npu is not installed", "torch-npu==2.7.1"),
        (replace(DEVICE, cann=""), "npu", "CANN is not installed", "toolkit"),
        (replace(DEVICE, cann_loaded=False), "npu", "not set", "latest/set_env.sh"),
    ],
)
def test_what_the_machine_cannot_do_is_refused(
    machine: Machine, wanted: str, missing: str, remedy: str
) -> None:
    with pytest.raises(BackendError) as error:
        choose_backend(machine, wanted)
    assert missing in error.value.message
    assert remedy in error.value.remedy


def test_a_ground_without_a_child_is_never_chosen() -> None:
    both = [{s.ground for s in check_backends(m) if not s.usable} for m in (WHEEL, DEVICE)]
    assert both[0] & both[1] == set(backends._IN_ORDER) - backends._BUILT
    assert choose_backend(DEVICE) in backends._BUILT


def test_wheels_that_do_not_fit_are_no_virtual_npu() -> None:
    unfit = replace(WHEEL, no_virtual_npu="torch_npu 2.7.1 is not for torch 2.13.0")
    assert choose_backend(unfit) is Backend.REFERENCE
    with pytest.raises(BackendError, match=r"is not for torch 2\.13\.0"):
        choose_backend(unfit, "virtual-npu")


def test_only_a_torch_that_imports_backends_is_broken_by_one() -> None:
    assert WHEEL.breaks_import
    assert not replace(WHEEL, torch="2.4.0+cpu").breaks_import
    assert not LOADED.breaks_import


def test_what_the_libraries_lack_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise VirtualNpuError("it ends too early", "libtorch_npu.so")

    monkeypatch.setattr(backends, "find_wheels", broken)
    assert backends.try_virtual_npu(TORCH) == TORCH
    assert backends.try_virtual_npu(WHEEL).no_virtual_npu == "it ends too early (libtorch_npu.so)"
    assert backends.prepare_backend(Backend.VIRTUAL_NPU, "auto", "A2") == (Backend.VIRTUAL_NPU, "")


def test_cann_is_found_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "version.cfg").write_text("runtime_running_version=[8.0.RC2:8.0.RC2]\n")
    found = survey({"ASCEND_HOME_PATH": str(tmp_path)})
    assert (found.cann, found.cann_version) == (str(tmp_path), "8.0.RC2")
    assert found.cann_loaded
    unset = survey({"HOME": str(tmp_path)})
    assert not unset.cann_loaded


@pytest.mark.parametrize("needs", ["torch==2.7.1", "torch (==2.7.1)", "torch==2.7.1.*"])
def test_the_torch_of_a_wheel_is_read(monkeypatch: pytest.MonkeyPatch, needs: str) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["pyyaml", needs])
    assert survey({}).wanted_torch == "2.7.1"


def test_a_wheel_without_cann_is_warned_of(inside: Npufix, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(WHEEL, torch="2.13.0")
    monkeypatch.setattr("npufix.rewriters.verification.workers.machine.survey", lambda: other)
    done = inside("doctor")
    assert done.returncode == 0
    words = " ".join(done.stdout.split())
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in words
    assert "torch_npu 2.7.1 is made for torch 2.7.1, not for 2.13.0" in words
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_without_torch_it_says_what_to_install(
    inside: Npufix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npufix.rewriters.verification.workers.machine.survey", lambda: BARE)
    done = inside("doctor")
    assert done.returncode == 0
    assert done.stdout.startswith("Nothing can be verified here")
    assert "npufix[verify]" in done.stdout


def test_json_has_every_ground_and_torch_is_not_imported(
    npufix: Npufix, inside: Npufix, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads(npufix("doctor", "--json").stdout)
    assert [line["ground"] for line in found["grounds"]] == ["npu", "virtual-npu", "reference"]
    assert found["chosen"] in {"npu", "virtual-npu", "reference", "none"}
    monkeypatch.setitem(sys.modules, "torch", None)
    assert inside("doctor").returncode == 0
