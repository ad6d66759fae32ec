"""The models of transformers 4.31.0: what is found, and what must not be.

The package is read, never imported. Another copy can be named in ``NPUFIX_TRANSFORMERS``.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import multiprocessing
import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from real_code_scan import Found, begin, fault, scan

from npufix.rules.substitution import Safety

if TYPE_CHECKING:
    from collections.abc import Iterator

# The scan is made once: all tests of this file belong to one worker.
pytestmark = pytest.mark.xdist_group("real code")

VERSION = "4.31.0"
_CHECKED = 4
"""Places of a rule whose rewrite is read again."""
LOOK_ALIKES = ["imagegpt", "mega", "deberta", "deberta_v2", "convnext"]
LABELS = Path(__file__).parents[2].parent / "shared" / "facts" / "labelled_sites.jsonl"


def package() -> Path | None:
    if named := os.environ.get("NPUFIX_TRANSFORMERS"):
        return Path(named)
    try:
        if version("transformers") != VERSION:
            return None
    except PackageNotFoundError:
        return None
    spec = importlib.util.find_spec("transformers")
    return Path(spec.origin).parent if spec and spec.origin else None


@pytest.fixture(scope="module")
def root() -> Path:
    found = package()
    if found is None or not (found / "models").is_dir():
        pytest.skip(f"transformers {VERSION} is not installed (pip install --no-deps)")
    return found


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), begin) as workers:
        yield workers


def leave_out_copies(files: list[Path], named: set[Path]) -> list[Path]:
    """Return the files that are not for the most part copies of others, and what tests name.

    Most models are copies of others: two files in three say little that another one does not.
    """
    seen, chosen = set[str](), list[Path]()
    for file in files:
        text = file.read_text(encoding="utf-8")
        lines = {line.strip() for line in text.splitlines()}
        asked = file in named or file.parent.name in LOOK_ALIKES or "torch.rsqrt" in text
        if asked or 2 * len(lines - seen) > len(lines):
            chosen.append(file)
            seen |= lines
    return chosen


@pytest.fixture(scope="module")
def found(root: Path, pool: ProcessPoolExecutor) -> list[Found]:
    files = sorted((root / "models").rglob("*.py"))
    assert len(files) > 1000
    named = {root / Path(*Path(str(label["file"])).parts[2:]) for label in labels()}
    chosen = leave_out_copies(files, named)
    assert len(chosen) > 300
    results = list(pool.map(scan, chosen, chunksize=10))
    problems = [result for result in results if isinstance(result, str)]
    assert problems == []
    return [site for result in results if not isinstance(result, str) for site in result]


def test_the_tree_has_sites_of_every_rule(found: list[Found]) -> None:
    rules = {site.rule for site in found}
    assert {"NPU101", "NPU201", "NPU202", "NPU203", "NPU205"} <= rules


def test_every_rms_norm_is_found_and_no_other_norm(found: list[Found]) -> None:
    names = {(site.path.parent.name, site.function) for site in found if site.rule == "NPU101"}
    assert names == {
        ("cpmant", "CpmAntLayerNorm.forward"),
        ("llama", "LlamaRMSNorm.forward"),
        ("longt5", "LongT5LayerNorm.forward"),
        ("mt5", "MT5LayerNorm.forward"),
        ("open_llama", "OpenLlamaRMSNorm.forward"),
        ("pix2struct", "Pix2StructLayerNorm.forward"),
        ("switch_transformers", "SwitchTransformersLayerNorm.forward"),
        ("t5", "T5LayerNorm.forward"),
        ("umt5", "UMT5LayerNorm.forward"),
    }


def test_every_rms_norm_can_be_rewritten_on_one_condition(found: list[Found]) -> None:
    norms = [site for site in found if site.rule == "NPU101"]
    assert {site.conditions for site in norms} == {("same-dtype",)}
    assert all(site.safety is Safety.CONDITIONAL for site in norms)


@pytest.mark.parametrize("model", LOOK_ALIKES)
def test_norms_that_look_alike_are_left_alone(model: str, found: list[Found]) -> None:
    assert [s for s in found if s.path.parent.name == model and s.rule == "NPU101"] == []


def test_no_layer_norm_becomes_an_rms_norm(found: list[Found]) -> None:
    classes = {s.function.split(".")[0] for s in found if s.rule not in {"NPU166", "NPU217"}}
    touched = {name for name in classes if name.endswith("LayerNorm")}
    without_mean = (
        "T5",
        "Transformers",
        "CpmAnt",
        "ImageGPT",
        "Pix2Struct",
        "EncoderStableLayerNorm",
    )
    assert all(any(part in name for part in without_mean) for name in touched), touched


def test_what_cannot_be_written_says_why(found: list[Found]) -> None:
    assert all(bool(site.problem) is (site.safety is Safety.ADVICE) for site in found)


def spread(places: list[Found], count: int) -> list[Found]:
    """Return ``count`` of the places or all of them, evenly spaced."""
    step = max(1.0, len(places) / count)
    return [places[int(number * step)] for number in range(min(count, len(places)))]


def test_rewrites_are_python_and_nothing_is_left_to_find(
    found: list[Found], pool: ProcessPoolExecutor
) -> None:
    """Copied models repeat one another: some of each rule, and every kind of function.

    Of a kind, the place in the shortest file: all of it is searched for each version of the text.
    """
    kinds = defaultdict[tuple[str, str, tuple[str, ...]], list[Found]](list)
    for site in found:
        if site.written:
            kinds[site.rule, site.function.rpartition(".")[2], site.conditions].append(site)
    rules = defaultdict[str, list[Found]](list)
    for (rule, *_), places in kinds.items():
        rules[rule].append(min(places, key=lambda site: (site.path.stat().st_size, site.path)))
    chosen = [site for places in rules.values() for site in spread(places, _CHECKED)]
    assert {site.rule for site in chosen} == {site.rule for site in found if site.written}
    chosen.sort(key=lambda site: (site.path, site.rule))
    faults = pool.map(fault, chosen, chunksize=4)
    assert [(site, text) for site, text in zip(chosen, faults, strict=True) if text] == []


def test_places_are_found_once(found: list[Found]) -> None:
    places = [(site.path, site.rule, site.span) for site in found]
    assert len(places) == len(set(places))


RULE_OF = {
    "rmsnorm": "NPU101",
    "masked_index_put": "NPU201",
    "gather": "NPU202",
    "repeat_interleave": "NPU203",
    "one_hot_sum": "NPU204",
}


def labels() -> list[dict[str, object]]:
    if not LABELS.exists():
        return []
    rows = [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]
    return [r for r in rows if r["repo"] == f"transformers-{VERSION}" and r["pattern"] in RULE_OF]


def enclosing(path: Path, line: int) -> range:
    """Return the lines of the class or function at the top level that holds a line."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if line in lines:
                return lines
    return range(line, line + 1)


@pytest.mark.skipif(not labels(), reason=f"no {LABELS}")
@pytest.mark.parametrize(
    "label", labels(), ids=lambda r: f"{r['pattern']}-{Path(r['file']).parent.name}-{r['line']}"
)
def test_labelled_sites(label: dict[str, object], root: Path, found: list[Found]) -> None:
    path = root / Path(*Path(str(label["file"])).parts[2:])
    lines = enclosing(path, int(str(label["line"])))
    rule = RULE_OF[str(label["pattern"])]
    here = [s for s in found if s.path == path and s.rule == rule and s.line in lines]
    if label["should_rewrite"] is True:
        assert [s for s in here if s.safety is not Safety.ADVICE]
        assert {fault(s) for s in here if s.written} == {""}
    else:
        assert [s for s in here if s.safety is Safety.SAFE] == []
