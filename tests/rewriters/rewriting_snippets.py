"""Small programs, and what the rewriter makes of them."""

from __future__ import annotations

import copy
import textwrap
from typing import TYPE_CHECKING, Any

from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules
from npufix.rules.substitution import Safety

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.rewriters.edit.site import Site

HEADER = "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
RULES = {rule.id: rule for rule in all_rules()}


def program(text: str, header: str = HEADER) -> str:
    return header + textwrap.dedent(text)


def sites(text: str, *ids: str, header: str = HEADER) -> list[Site]:
    """Return the sites of a snippet below the usual imports.

    A scan, which makes no text, must come to the same.
    """
    code, rules = program(text, header), [RULES[i] for i in ids or RULES]
    found = list(find_sites(code, rules))
    tried = list(find_sites(code, rules, with_text=False))
    assert [_seen(site) for site in tried] == [_seen(site) for site in found]
    return found


def _seen(site: Site) -> tuple[object, ...]:
    text = site.rewrite.text if site.rewrite else ""
    return site.rule.id, site.line, site.code, site.proofs, site.problem, text


def written(found: Sequence[Site]) -> list[Site]:
    """Return the sites that the tool would change, on condition or not."""
    return [site for site in found if site.safety is not Safety.ADVICE]


def direct(text: str, *ids: str, header: str = HEADER) -> str:
    """Return the program after its only change, without the imports."""
    (site,) = written(sites(text, *ids, header=header))
    assert site.rewrite is not None
    return site.rewrite.direct.replace("import torch_npu\n", "", 1).removeprefix(header)


def norm_module(forward: str, name: str = "Norm", dim: str = "dim", rest: str = "") -> str:
    """Return a module with ``self.weight`` and ``self.eps`` around a ``forward``."""
    head = f"""
class {name}(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones({dim}))
        self.eps = eps

"""
    return head + textwrap.indent(textwrap.dedent(forward).strip("\n"), "    ") + "\n" + rest


NORM_OF = norm_module("""
    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps))
""")


def _run(text: str, name: str, arguments: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    scope: dict[str, Any] = {}
    exec(compile(text, "<snippet>", "exec"), scope)  # noqa: S102 - our own examples
    passed = copy.deepcopy(dict(arguments))
    return scope[name](**passed), passed


def assert_same_behaviour(
    before: str, after: str, arguments: Mapping[str, Any], name: str = "f"
) -> None:
    """Run both versions on equal arguments; results and arguments must agree afterwards."""
    import torch

    (one, one_args), (two, two_args) = (_run(text, name, arguments) for text in (before, after))
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(two_args, one_args, rtol=0, atol=0, equal_nan=True)
