"""What the searches find in small programs."""

from __future__ import annotations

import ast
from textwrap import dedent
from typing import TYPE_CHECKING

from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from npufix.rewriters.edit.site import Site

HEADER = "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
RULES = [rule for rule in all_rules() if rule.search]


def found(text: str, rule: str) -> list[Site]:
    """Return what one rule finds in a program below the usual imports."""
    sites = find_sites(HEADER + dedent(text), RULES)
    return [site for site in sites if site.rule.id == rule]


def rewritten(text: str, rule: str) -> str:
    """Return the program after its only change, without the imports."""
    (site,) = found(text, rule)
    assert site.rewrite is not None, site.problem
    ast.parse(site.rewrite.direct)
    return site.rewrite.direct.removeprefix(HEADER)
