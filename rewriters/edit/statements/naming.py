"""What a value is called that had no name before."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

_RESULTS: Mapping[type[ast.operator], str] = {
    ast.Pow: "power", ast.Mult: "scaled", ast.Div: "ratio", ast.Add: "sum", ast.Sub: "difference",
    ast.MatMult: "product",
}  # fmt: skip


def word_for(imports: Container[str], code: ast.expr) -> str:
    """Return what a value is called by what makes it: ``ones``, ``x_exp``, ``distance_power``."""
    match code:
        case ast.Call(ast.Attribute(ast.Name(owner), attr)):
            return attr if owner in imports else f"{owner}_{attr}"
        case ast.Call(ast.Attribute(ast.Call() as inner, _)):
            return word_for(imports, inner)  # ``arange`` of ``torch.arange(n).unsqueeze(1)``
        case ast.BinOp(_, operator):
            names = (n.id for n in ast.walk(code) if isinstance(n, ast.Name))
            owner = next((name for name in names if name not in imports), "")
            kind = _RESULTS.get(type(operator))
            return f"{owner}_{kind}" if owner and kind else "term"
    return "term"
