"""Which file of the source a recorded path means, and whether it is the one that ran."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.advisor.evidence.recorded_paths import SourceState, map_recorded_paths, source_state
from npufix.advisor.project.source_tree import SourceError, SourceTree, read_source_tree
from npufix.profiling_parsers.profile import Environment, Profile


def tree_of(tmp_path: Path, *names: str) -> SourceTree:
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n", encoding="utf-8")
    return read_source_tree(tmp_path)


def test_a_moved_tree_is_mapped_by_its_suffix(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "train.py", "model/norm.py", "model/utils.py")
    recorded = [
        "/workspace/job/train.py",
        "/workspace/job/model/norm.py",
        "/usr/lib/python3.11/site-packages/torch/model/utils.py",
        "/usr/lib/python3.11/site-packages/lightning/train.py",
        "<string>",
    ]
    assert map_recorded_paths(recorded, tree)[0] == {
        "/workspace/job/train.py": "train.py",
        "/workspace/job/model/norm.py": "model/norm.py",
    }


def test_windows_paths_are_mapped(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "model/norm.py")
    assert map_recorded_paths([r"C:\job\model\norm.py"], tree)[0] == {
        r"C:\job\model\norm.py": "model/norm.py"
    }


def test_a_root_above_or_below_the_recorded_one_works(tmp_path: Path) -> None:
    tree_of(tmp_path, "job/model/norm.py")
    above = read_source_tree(tmp_path)
    below = read_source_tree(tmp_path / "job" / "model")
    recorded = ["/w/job/model/norm.py"]
    assert map_recorded_paths(recorded, above)[0] == {recorded[0]: "job/model/norm.py"}
    assert map_recorded_paths(recorded, below)[0] == {recorded[0]: "norm.py"}


@given(st.lists(st.text(max_size=30), max_size=5))
def test_no_recorded_path_breaks_the_mapping(recorded: list[str]) -> None:
    tree = SourceTree(Path(), Path(), {}, ())
    assert map_recorded_paths(recorded, tree)[0] == {}


def test_a_tree_with_folders_of_its_own_above_is_mapped(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "src/train.py", "src/model/norm.py", "docs/train.py")
    recorded = ["/workspace/train.py", "/workspace/model/norm.py"]
    mapped, unclear = map_recorded_paths(recorded, tree)
    assert mapped == {recorded[0]: "src/train.py", recorded[1]: "src/model/norm.py"}
    assert not unclear


def test_paths_without_their_folder_are_mapped(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "src/train.py", "src/model/norm.py", "torch_like/nn/modules/conv.py")
    recorded = ["train.py", "model/norm.py", "torch/nn/modules/conv.py", "threading.py"]
    mapped, _ = map_recorded_paths(recorded, tree)
    assert mapped == {"train.py": "src/train.py", "model/norm.py": "src/model/norm.py"}


def test_a_path_of_another_root_is_mapped_if_it_is_beyond_doubt(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "train.py", "model/norm.py", "ops/fast.py")
    recorded = ["/w/train.py", "/w/model/norm.py", "/opt/ours/ops/fast.py", "/opt/other/train.py"]
    mapped, _ = map_recorded_paths(recorded, tree)
    assert mapped == {
        "/w/train.py": "train.py",
        "/w/model/norm.py": "model/norm.py",
        "/opt/ours/ops/fast.py": "ops/fast.py",
    }


def test_twins_are_told_apart_by_the_user(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "a/model/norm.py", "b/model/norm.py")
    recorded = ["/w/model/norm.py"]
    mapped, unclear = map_recorded_paths(recorded, tree)
    assert not mapped
    assert "a/model/norm.py or b/model/norm.py" in unclear[0].what
    assert "--path-map" in unclear[0].remedy
    for new in ("b", str(tmp_path / "b")):
        mapped, unclear = map_recorded_paths(recorded, tree, [("/w", new)])
        assert mapped == {"/w/model/norm.py": "b/model/norm.py"}
        assert not unclear


def test_environments_and_hidden_folders_are_left_out(tmp_path: Path) -> None:
    tree = tree_of(
        tmp_path, "a.py", ".git/b.py", "venv/c.py", "own/pyvenv.cfg", "own/lib/d.py", "build/e.py"
    )
    assert set(tree.files) == {"a.py"}


def test_a_link_in_a_circle_is_no_endless_walk(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert set(tree_of(tmp_path, "a.py").files) == {"a.py"}


def test_no_python_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no Python file"):
        read_source_tree(tmp_path)


def profile_with(digests: dict[str, str], start_ns: int) -> Profile:
    kernels = pd.DataFrame({"start_ns": [start_ns], "duration_ns": [1]})
    empty = pd.DataFrame()
    environment = Environment(source_sha256=digests)
    return Profile(Path(), environment, kernels, empty, empty, empty, ())


def test_digests_decide_before_file_times(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "a.py", "b.py")
    mapped = {"/w/a.py": "a.py"}
    good = {f"/w/{n}": hashlib.sha256(tree.files[n].data).hexdigest() for n in ("a.py", "b.py")}
    future = 2**62
    assert source_state(profile_with(good, 0), tree, mapped) is SourceState.AS_PROFILED
    bad = {**good, "/w/b.py": "0" * 64}
    assert source_state(profile_with(bad, future), tree, mapped) is SourceState.CHANGED
    more = {**good, "/w/gone.py": "0" * 64}
    assert source_state(profile_with(more, future), tree, mapped) is SourceState.UNKNOWN


def test_files_older_than_the_run_are_the_ones_that_ran(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "a.py")
    os.utime(tmp_path / "a.py", ns=(10**18, 10**18))
    mapped = {"/w/a.py": "a.py"}
    assert source_state(profile_with({}, 10**18 + 1), tree, mapped) is SourceState.AS_PROFILED
    assert source_state(profile_with({}, 10**18 - 1), tree, mapped) is SourceState.UNKNOWN


def test_a_package_may_be_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree_of(tmp_path, "__init__.py", "norm.py", "utils.py")
    monkeypatch.chdir(tmp_path)
    tree = read_source_tree(Path())
    assert tree.files["norm.py"].neighbour(".utils") == "# utils.py\n"
    assert tree.files["norm.py"].neighbour("..utils") is None
