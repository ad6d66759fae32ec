"""The operators with a gradient of their own that a text defines."""

from __future__ import annotations

import ast
import re

from npufix.rewriters.graph.modules.syntax import walk

_FUNCTION = re.compile(r"(^|\.)(autograd\.)?Function$")


def list_operators(text: str) -> set[str]:
    """Return every class derived from ``torch.autograd.Function``, as code; none of no syntax.

    Of such an operator, autograd checks nothing: with ``ctx.save_for_backward(x, x.sigmoid())`` the
    gradient may be right, and the gradient of the gradient wrong without a word.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    classes = (node for node in walk(tree) if isinstance(node, ast.ClassDef))
    return {
        ast.unparse(node)
        for node in classes
        if any(_FUNCTION.search(ast.unparse(base)) for base in node.bases)
    }
