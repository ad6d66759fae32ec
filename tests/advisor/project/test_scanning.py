"""Searching many files: several processes find what one finds."""

from __future__ import annotations

import ast
import gc
from typing import TYPE_CHECKING

from npufix.advisor.project import scanning
from npufix.advisor.project.configuration import EVERYTHING
from npufix.advisor.project.scanning import FileSearch, Search
from npufix.advisor.project.source_tree import read_source_tree
from npufix.rewriters.find import find_sites
from npufix.rewriters.write import child_processes
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

FUNCTION = """

def f{n}(key: torch.Tensor, n):
    return key.repeat_interleave({n}, dim=1), key.repeat_interleave(n, dim=1){comment}
"""


def facts(found: FileSearch) -> object:
    def described(site: object) -> object:
        return {name: str(getattr(site, name)) for name in ("line", "code", "lines", "problem")}

    return (
        [
            (described(s), s.rule.id, s.rewrite, [(p.condition.name, p.basis) for p in s.proofs])
            for s in found.sites
        ],
        [(described(s), c) for s, c in found.hidden],
        found.problem,
        found.warnings,
    )


def test_processes_find_what_one_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        comment = "  # npufix: ignore[NPU999]" if n == 3 else ""
        mark = "# @generated\n" if n == 4 else ""
        code = "import torch\n" + FUNCTION.format(n=n + 2, comment=comment)
        (tmp_path / f"m{n}.py").write_text(mark + code, encoding="utf-8")
    (tmp_path / "broken.py").write_text("import torch\nx[m] = = 0\n", encoding="utf-8")
    files = list(read_source_tree(tmp_path).files.values())
    search = Search(all_rules(), EVERYTHING, lambda _: None, frozenset({"npu203"}))
    alone = [(file, facts(found)) for file, found in search.files(files)]
    monkeypatch.setattr(scanning, "_WORTH_A_POOL", 1)
    monkeypatch.setattr(child_processes, "processors", lambda: 2)
    together = list(search.files(files))
    assert [(file, facts(found)) for file, found in together] == alone
    rules = {id(rule) for rule in all_rules()}
    sites = [site for _, found in together for site in found.sites]
    assert len(sites) == 12
    assert all(id(site.rule) in rules and site.form in site.rule.forms for site in sites)


def test_a_report_needs_no_text_of_changed_modules(tmp_path: Path) -> None:
    code = "import torch\n" + FUNCTION.format(n=2, comment="")
    (tmp_path / "m.py").write_text(code, encoding="utf-8")
    (file,) = read_source_tree(tmp_path).files.values()
    search = Search(all_rules(), EVERYTHING, lambda _: None, frozenset(), with_text=False)
    first = search.file(file).sites[0]
    assert first.rewrite is not None
    assert (first.rewrite.direct, bool(first.rewrite.text)) == ("", True)


def test_a_tree_goes_with_its_search() -> None:
    """What only a collection of garbage finds makes the next file dear."""
    loop = (
        "    for i in range(len(key)):\n        key[i] = key[i] * [torch.sqrt(k) for k in key][0]\n"
    )
    text = "import torch" + FUNCTION.format(n=2, comment="") + f"\n\ndef g(key):\n{loop}"
    rules = all_rules()
    assert list(find_sites(text, rules))
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        list(find_sites(text, rules))
        gc.collect()
        left = [node.name for node in gc.garbage if isinstance(node, ast.FunctionDef)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert left == []
