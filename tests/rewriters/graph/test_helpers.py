"""Helpers are read where they are called: inner ones, lambdas, those of neighbouring modules."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest
from rewriting_snippets import HEADER, RULES, direct, sites, written

from npufix.advisor.project.source_tree import SourceFile
from npufix.rewriters.find import find_sites
from npufix.rewriters.graph.modules.neighbours import name_seen_from

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.rewriters.edit.site import Site

NORM = "    return w * (x * torch.rsqrt({} + eps))\n"
LIBRARY = """
import torch
from .squares import squared
EPS = 1e-6

def mean_square(x):
    return squared(x).mean(-1, keepdim=True)

def inverse(x):
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)

def noisy(x):
    print(x)
    return x.pow(2).mean(-1, keepdim=True)

def twice(x):
    return x.pow(2).mean(-1, keepdim=True)

def twice(x):
    return x.abs().mean(-1, keepdim=True)
"""
FALLBACK = """
try:
    from fast import mean_square
except ImportError:
    from ..one.library import mean_square
"""
SQUARES = "def squared(x):\n    return x.pow(2)\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package with two folders, the first of which holds helpers."""
    root = tmp_path / "package"
    for folder in (root, root / "one", root / "two"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    (root / "one" / "library.py").write_text(LIBRARY)
    (root / "one" / "squares.py").write_text(SQUARES)
    (root / "one" / "everything.py").write_text("from .library import *\n")
    (tmp_path / "outside.py").write_text(SQUARES)
    return root


def file_of(package: Path, text: str, name: str = "two/user.py") -> SourceFile:
    path = package / name
    path.write_text(text)
    return SourceFile(path, name, text.encode(), text, "utf-8")


def found_in(package: Path, imports: str, body: str) -> list[Site]:
    file = file_of(package, f"{HEADER}{imports}\n\n{textwrap.dedent(body)}")
    return list(find_sites(file.text, [RULES["NPU101"]], neighbour=file.neighbour))


@pytest.mark.parametrize(
    "imports",
    ["from ..one.library import mean_square", "from package.one.library import mean_square",
     "from ..one.library import other, mean_square", "from ..one.library import *",
     "from ..one.everything import *\nfrom math import *"],
)  # fmt: skip
def test_a_helper_of_a_neighbouring_module_is_read(package: Path, imports: str) -> None:
    body = "def f(x, w, eps):\n" + NORM.format("mean_square(x)")
    (site,) = written(found_in(package, imports, body))
    assert site.rewrite is not None
    assert "npu_rms_norm(x, w, epsilon=eps)" in site.rewrite.text
    assert site.lines == {site.line}, "the lines of the helper are those of another file"


@pytest.mark.parametrize(
    ("imports", "called"),
    [("from ..one import library", "library"), ("from ..one import library as lib", "lib"),
     ("import package.one.library as lib", "lib")],
)  # fmt: skip
def test_a_helper_behind_the_name_of_its_module_is_read(
    package: Path, imports: str, called: str
) -> None:
    body = "def f(x, w, eps):\n" + NORM.format(f"{called}.mean_square(x)")
    (site,) = written(found_in(package, imports, body))
    assert site.rewrite is not None
    assert "npu_rms_norm(x, w, epsilon=eps)" in site.rewrite.text
    for other in (f"{called} = abs\n", f"class {called}:\n    mean_square = abs\n"):
        assert written(found_in(package, imports, other + body)) == []
    given = body.replace("(x, w, eps)", f"({called}, x, w, eps)")
    assert written(found_in(package, imports, given)) == []


@pytest.mark.parametrize(
    ("imports", "before"),
    {
        "a function of its own": ("from ..one.library import mean_square",
                                  "def mean_square(x):\n    return x\n"),
        "assigned later": ("from ..one.library import mean_square", "mean_square = abs\n"),
        "imported on a condition": (FALLBACK, ""),
        "has an effect": ("from ..one.library import noisy as mean_square", ""),
        "is defined twice": ("from ..one.library import twice as mean_square", ""),
        "not in the package": ("from ...outside import squared as mean_square", ""),
        "another package": ("from outside import squared as mean_square", ""),
        "not there": ("from ..one.missing import mean_square", ""),
        "a module": ("from . import mean_square", ""),
        "behind what nobody knows": ("from ..one.library import *\nfrom fast import *", ""),
        "a star in front of its own": ("from ..one.library import *",
                                       "def mean_square(x):\n    return x\n"),
    }.values(),
)  # fmt: skip
def test_what_may_be_another_function_is_a_call(package: Path, imports: str, before: str) -> None:
    body = before + "def f(x, w, eps):\n" + NORM.format("mean_square(x)")
    assert written(found_in(package, imports, body)) == []


def test_the_names_of_a_helper_are_those_of_its_own_module(package: Path) -> None:
    body = "EPS = 3\ndef f(x, w):\n    print(EPS)\n    return w * (x * inverse(x))\n"
    assert written(found_in(package, "from ..one.library import inverse", body)) == []


@pytest.mark.parametrize(
    "module", ["...outside", "..one.../outside", "outside", "", ".", "..", "....etc.passwd"]
)
def test_nothing_outside_the_package_is_read(package: Path, module: str) -> None:
    assert file_of(package, "").neighbour(module) is None


def test_a_link_and_a_huge_file_are_not_read(package: Path) -> None:
    (package / "two" / "link.py").symlink_to(package.parent / "outside.py")
    (package / "two" / "huge.py").write_text("# " + "x" * 2_000_000)
    file = file_of(package, "")
    assert file.neighbour(".link") is file.neighbour(".huge") is None
    assert file.neighbour("..one.squares") == SQUARES


@pytest.mark.parametrize(
    ("module", "other", "full"),
    [
        (".a", ".b", ".b"),
        ("..llama.modeling", ".config", "..llama.config"),
        ("..llama.modeling", "..mistral.layers", "..mistral.layers"),
        ("..llama.modeling", "...utils", "...utils"),
        (".a", "...utils", "...utils"),
        ("package.one.a", "..two.b", "package.two.b"),
        ("..llama.modeling", "package.b", "package.b"),
    ],
)
def test_a_module_is_named_from_the_file_that_is_read(module: str, other: str, full: str) -> None:
    assert name_seen_from(module, other) == full


BASE = """
from torch import nn
class Base(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def swap(self, value):
        self.state = value
"""


@pytest.mark.parametrize(("attribute", "count"), [("scale", 1), ("state", 0)])
def test_a_base_in_another_module_says_what_attributes_are(
    package: Path, attribute: str, count: int
) -> None:
    (package / "one" / "base.py").write_text("import torch\n" + BASE)
    body = f"""
    class Norm(Base):
        def __init__(self, dim):
            super().__init__(dim)
            self.{attribute} = nn.Parameter(torch.ones(dim))

        def forward(self, x, eps, other):
            y = self.{attribute}
            other(x)
            return x * (self.{attribute} * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps))
    """
    found = written(found_in(package, "from ..one.base import Base", body))
    assert len(found) == count


INNER = {
    "inner function": "def mean(t):\n    return t.pow(2).mean(-1, keepdim=True)",
    "lambda": "mean = lambda t: t.pow(2).mean(-1, keepdim=True)",
    "inner function of inner functions": """def square(t):
    return t.pow(2)
def mean(t):
    return square(t).mean(-1, keepdim=True)""",
}  # fmt: skip
NOT_INNER = {
    "decorated": "@other\ndef mean(t):\n    return t.pow(2).mean(-1, keepdim=True)",
    "generator": "def mean(t):\n    yield t\n    return t.pow(2).mean(-1, keepdim=True)",
    "rebound": INNER["lambda"] + "\nif other:\n    mean = other",
    "reads what is rebound": "y = x\nmean = lambda t: y.pow(2).mean(-1, keepdim=True)\ny = other",
    "many arguments": "mean = lambda *t: t[0].pow(2).mean(-1, keepdim=True)",
    "shadows": "def square(t):\n    return x.pow(2)\n"
               "def mean(x):\n    return square(x).mean(-1, keepdim=True)\nz = x\nx = other",
}  # fmt: skip


def inner(text: str) -> str:
    body = textwrap.indent(text, "    ")
    subject = "z" if "z = x" in text else "x"
    return f"def f(x, w, eps, other):\n{body}\n" + NORM.format(f"mean({subject})").replace(
        "(x *", f"({subject} *"
    )


@pytest.mark.parametrize("text", INNER.values(), ids=INNER.keys())
def test_an_inner_function_is_read_where_it_is_called(text: str) -> None:
    assert len(written(sites(inner(text), "NPU101"))) == 1


@pytest.mark.parametrize("text", NOT_INNER.values(), ids=NOT_INNER.keys())
def test_other_inner_functions_are_calls(text: str) -> None:
    assert written(sites(inner(text), "NPU101")) == []


def test_an_inner_function_calls_methods_of_the_class_around_it() -> None:
    text = """
        class R(nn.Module):
            @staticmethod
            def turn(x):
                return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)

            def forward(self, q, cos, sin):
                def rotate(x):
                    front, rest = x[..., :8], x[..., 8:]
                    front = front * cos + self.turn(front) * sin
                    return torch.cat((front, rest), dim=-1) if rest.shape[-1] else front

                return rotate(q)
    """
    assert len(written(sites(text, "NPU102"))) == 1
    for old, new in (("forward(self, q", "forward(this, self, q"), ("return rot", "self = q; rot")):
        assert written(sites(text.replace(old, new), "NPU102")) == []


def test_a_rank_known_in_one_branch_of_a_helper_is_not_known_outside() -> None:
    helper = """
    def split(x, flag):
        if flag:
            n, d = x.shape
            return n
        return 0

    def f(x, w, flag):
        n = split(x, flag)
        return F.linear(x, w, torch.zeros(4)) + n
    """
    plain = helper.replace("n, d = x.shape", "n = x.shape[0]")
    assert [s.safety for s in sites(helper, "NPU205")] == [s.safety for s in sites(plain, "NPU205")]


TURNED = """
from einops import rearrange

def turn(x, pairs=False, mode="half"):
    if not pairs and mode == "half":
        return x
    if mode != "half":
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)
    x1, x2 = x[..., ::2], x[..., 1::2]
    return rearrange(torch.stack((-x2, x1), dim=-1), "... d two -> ... (d two)", two=2)

def f(x, cos, sin, pairs):
    return x * cos + turn({}) * sin
"""


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ("x, True", ', rotary_mode="interleave"'),
        ("x, mode='other'", ""),
        ("x", None),
        ("x, pairs", None),
    ],
)
def test_what_a_call_tells_a_helper_decides_its_branches(arguments: str, mode: str | None) -> None:
    found = written(sites(TURNED.format(arguments), "NPU102"))
    expected = [] if mode is None else [f"torch_npu.npu_rotary_mul(x, cos, sin{mode})"]
    assert [s.rewrite.text for s in found if s.rewrite] == expected


@pytest.mark.parametrize(
    ("parts", "joined", "mode"),
    [
        ("... (d r) -> r ... d", "r ... d -> ... (d r)", ', rotary_mode="interleave"'),
        ("... (r d) -> r ... d", "r ... d -> ... (r d)", ""),
        ("... (d r) -> r ... d", "r ... d -> ... (r d)", None),  # pairs become halves
        ("... (d r) -> d ... r", "r ... d -> ... (d r)", None),
    ],
)
def test_a_list_that_einops_joins_is_stacked(parts: str, joined: str, mode: str | None) -> None:
    code = f"""
from einops import rearrange

def turn(x):
    x1, x2 = rearrange(x, "{parts}", r=2)
    return rearrange([-x2, x1], "{joined}", r=2)

def f(x, cos, sin):
    return cos * x + sin * turn(x)
"""
    expected = [] if mode is None else [f"torch_npu.npu_rotary_mul(x, cos, sin{mode})"]
    found = written(sites(code, "NPU102"))
    assert [s.rewrite.text for s in found if s.rewrite] == expected


def of_device(test: str) -> str:
    """Return a normalisation whose mean another kind of device computes in another way."""
    body = f"""
    def mean(t):
        if {test}:
            return t.cpu().pow(2).mean(-1, keepdim=True)
        return t.pow(2).mean(-1, keepdim=True)
    """
    return (
        "def f(x, w, eps, other):"
        + textwrap.dedent(body).replace("\n", "\n    ")
        + ("\n" + NORM.format("mean(x)"))
    )


@pytest.mark.parametrize(
    "test", ['t.device.type == "mps"', 'not t.device.type != "xla"', '"xpu" == t.device.type']
)
def test_a_helper_is_read_as_on_an_npu(test: str) -> None:
    assert "npu_rms_norm(x, w, epsilon=eps)" in direct(of_device(test))


@pytest.mark.parametrize(
    "test",
    [
        't.device.type == "npu"',
        't.device.type == "cuda"',
        't.device.type != "mps"',
        't.dtype == "mps"',
        "t.device.type == other",
        "other.type == 'mps'",
    ],
)
def test_another_test_of_a_helper_is_not_decided(test: str) -> None:
    assert not sites(of_device(test))


ROOT = """
def root(t):
    if t.device.type == "mps":
        return t.cpu().sigmoid().to(t.device)
    return torch.sigmoid(t)
"""


def test_code_for_all_devices_takes_the_place_of_a_helper_on_an_npu_alone() -> None:
    (site,) = written(sites(f"{ROOT}\ndef f(x):\n    return x * root(x)\n", "NPU206"))
    assert site.rewrite is not None
    assert "return F.silu(x)" in site.rewrite.direct
    body = site.rewrite.portable.partition("def f(x):\n")[2]
    assert body == (
        '    if x.device.type == "npu":\n        return F.silu(x)\n    return x * root(x)\n'
    )


def test_code_for_all_devices_is_refused_where_no_device_can_be_asked() -> None:
    text = (
        "def f(x, y, flag):\n    if flag and (x * root(x)).any():\n        return y\n    return x\n"
    )
    assert not written(sites(ROOT + text, "NPU206"))


def test_what_has_no_pattern_is_only_pointed_at_beside_such_a_helper() -> None:
    text = """
class Criterion(nn.Module):
    def forward(self, x: torch.Tensor):
        y = root(x)
        count = torch.clamp(x.sum(), min=1).item()
        return y.sum() / count
"""
    plain = ROOT.replace('t.device.type == "mps"', "t.is_complex()").replace("t.cpu().", "t.")
    assert written(sites(plain + text, "NPU214"))
    assert not written(sites(ROOT + text, "NPU214"))
    assert sites(ROOT + text, "NPU214")
