"""The operators with a gradient of their own that a function reaches."""

from __future__ import annotations

import ast
import re

from npufix.rewriters.graph.modules.syntax import parse_once, walk
from npufix.rewriters.verification.inputs.source.slicing import slice_module

_FUNCTION = re.compile(r"(^|\.)(autograd\.)?Function$")


def list_operators(text: str, qualname: str) -> set[str]:
    """Return classes derived from ``torch.autograd.Function`` that a function needs, as code.

    Of such an operator, autograd checks nothing: with ``ctx.save_for_backward(x, x.sigmoid())`` the
    gradient may be right, and the gradient of the gradient wrong without a word. What else stands
    in its file has nothing to do with it. Of no syntax there are none.
    """
    try:
        tree = parse_once(text)
    except (SyntaxError, ValueError):
        return set()
    needed = slice_module(tree, qualname.partition(".")[0])
    classes = (n for part in needed for n in walk(part) if isinstance(n, ast.ClassDef))
    return {
        ast.unparse(node)
        for node in classes
        if any(_FUNCTION.search(ast.unparse(base)) for base in node.bases)
    }
