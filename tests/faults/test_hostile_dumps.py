"""A dump is data from anybody: what never ends is refused, what steers a terminal is escaped."""

from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING

import pytest

from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.trace import unpacked
from npufix.reports.encoding import encoded

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["kernel_details.csv", "step_trace_time.csv"])
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    output = tmp_path / "x_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "kernel_details.csv").write_text("Name\n")
    (output / name).unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(output / name)
    else:
        (output / name).symlink_to("/dev/zero")
    with pytest.raises(DumpError, match=rf"{name} is {kind}, no file"):
        read_profile(output.parent)


def test_a_trace_that_unpacks_without_end_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "_FREE_BYTES", 1 << 20)
    path = tmp_path / "trace_view.json.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 21)) * 10)
    with unpacked.UnpackedFile(path) as file:
        assert len(file.read()) < 10 << 21
        assert file.damage == "it unpacks to more than 300 times its size"


def test_json_steers_no_terminal() -> None:
    text = "a\u202eb\x9bc\x7fd\u2028e\x1bé中"
    made = encoded({text: text}).decode()
    assert made.isprintable()
    assert json.loads(made) == {text: text}
