"""Where ``import torch_npu`` goes."""

from __future__ import annotations

import ast

import pytest
from rewriting_snippets import NORM_OF, RULES, written

from npufix.rewriters.edit.imports import Import, add_import, imports_torch_npu
from npufix.rewriters.find import find_sites

NPU = Import("torch_npu")
PLAIN = "import torch_npu\n"
GUARDED = """
try:
    import torch_npu
except ImportError:  # not on an NPU machine
    torch_npu = None
"""
# What is above the import, and what is below; a guarded one goes below the last import.
PLACES = {
    "below torch": ("import os\nimport torch\n", "import sys\nx = 1\n"),
    "below the last import of torch": ("import torch\nimport torch.nn as nn\n", "import sys\n"),
    "below from torch": ("from torch import nn\n", "x = 1\n"),
    "below other imports": ("import os\nimport sys\n", "x = 1\n"),
    "below a future import": ("from __future__ import annotations\n", "x = 1\n"),
    "below docstring and future import": (
        '"""Doc."""\n\nfrom __future__ import annotations\n',
        "\nx = 1\n",
    ),
    "below an import of several lines": (
        "from torch import (\n    nn,\n)\n",
        "x = 1\n",
    ),
    "below a docstring": ('"""Doc.\n\nimport torch\n"""\n', "\nx = 1\n"),
    "below a shebang": ("#!/usr/bin/env python\n# coding: utf-8\n", "x = 1\n"),
    "above an import in try": (
        "# comment\n",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\n",
    ),
    "above a decorator": ("", "@decorator\ndef f(): ...\n"),
}


@pytest.mark.parametrize(("above", "below"), PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_a_plain_import_goes_there(above: str, below: str, newline: str) -> None:
    source = (above + below).replace("\n", newline)
    expected = (above + PLAIN + below).replace("\n", newline)
    assert add_import(source, NPU, guarded=False) == expected


@pytest.mark.parametrize(("above", "below"), PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_a_guarded_import_goes_below_the_imports(above: str, below: str, newline: str) -> None:
    if below.startswith("import sys\n"):
        above, below = above + "import sys\n", below.removeprefix("import sys\n")
    source = (above + below).replace("\n", newline)
    expected = (above + GUARDED + below).replace("\n", newline)
    assert add_import(source, NPU, guarded=True) == expected


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize(
    "source",
    [
        "import torch\nimport torch_npu\n",
        "import torch_npu, torch\n",
        "import torch_npu.contrib\n",
        "try:\n    import torch_npu\nexcept ImportError:\n    torch_npu = None\n",
        "import torch\n\nif torch.npu:\n    import torch_npu\n",
    ],
)
def test_what_is_imported_is_not_imported_again(source: str, *, guarded: bool) -> None:
    assert add_import(source, NPU, guarded=guarded) == source


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("name", PLACES.keys())
def test_importing_twice_is_importing_once(name: str, *, guarded: bool) -> None:
    once = add_import("".join(PLACES[name]), NPU, guarded=guarded)
    assert add_import(once, NPU, guarded=guarded) == once
    assert imports_torch_npu(ast.parse(once))
    assert imports_torch_npu(ast.parse(once), unconditionally=True) is not guarded


@pytest.mark.parametrize(
    "above",
    [
        "import torch\nfrom torch import nn\n",
        "try:\n    import torch\n    from torch import nn\nexcept ImportError:\n    torch = None\n",
        '"""Doc."""\nimport torch; from torch import nn\n',
        "from __future__ import annotations\n\nimport torch.nn as nn\nimport torch\n",
        (
            "import torch\nfrom torch import nn\n\ntry:\n    import torch_npu\n"
            "except ImportError:\n    torch_npu = None\n"
        ),
    ],
)
def test_both_versions_of_a_module_run_as_python(above: str) -> None:
    (site,) = written(list(find_sites(above + NORM_OF, [RULES["NPU101"]])))
    assert site.rewrite is not None
    for text in (site.rewrite.direct, site.rewrite.portable):
        compile(text, "module", "exec")
        assert text.count("import torch_npu") == 1


@pytest.mark.parametrize(
    "above",
    ["import torch_npu as npu\n", "def g():\n    import torch_npu\n"],
    ids=["under another name", "in a function"],
)
def test_an_import_that_does_not_bind_the_name_is_not_taken_for_one(above: str) -> None:
    source = "import torch\nfrom torch import nn\n" + above + NORM_OF
    found = written(list(find_sites(source, [RULES["NPU101"]])))
    assert [s.rewrite.direct.count("import torch_npu\n") for s in found if s.rewrite] == [
        1 + above.count("import torch_npu\n")
    ]


def test_a_script_imports_what_it_needs_before_it_calls_anything() -> None:
    above = "import torch\n\nN = 4\n"
    text = f"{above}optim = torch.optim.Adam(model.parameters())\nimport wandb\n"
    new = add_import(text, NPU, guarded=True)
    assert new == text.replace("import torch\n", f"import torch\n{GUARDED}", 1)


@pytest.mark.parametrize(
    ("call", "below"), [('sys.path.append("core")', "import b"), ("run()", "import sys")]
)
def test_a_guarded_import_stands_below_what_sets_the_interpreter_up(call: str, below: str) -> None:
    source = f"import sys\n{call}\nimport b\n"
    lines = add_import(source, Import("torch_npu"), guarded=True).splitlines()
    assert lines[lines.index("try:") - 2] == below
