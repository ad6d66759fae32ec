"""The eager attention of transformers, on the implementation that it has for ``sdpa``.

A model that is told to use ``eager`` calls ``eager_attention_forward`` of its own file. With the
condition ``one-of-several`` of rule NPU162 vouched for, that function begins with a question: may
the function that transformers itself has for ``sdpa`` do it? It hands the mask to
``scaled_dot_product_attention`` in the form in which torch_npu launches FlashAttentionScore.
"""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npufix.rewriters.graph.modules.names import FunctionNode

RULE, CONDITION = "NPU162", "one-of-several"
NAME = "__npufix_attend__"
_PARAMETERS = {"module", "query", "key", "value", "attention_mask", "scaling", "dropout"}
_RESULT = "__npufix_attended__"


def may_be_asked(function: FunctionNode) -> bool:
    """Tell whether a function is an attention as transformers calls it, and no more than that."""
    spec = function.args
    names = {a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
    return names == _PARAMETERS and spec.kwarg is not None and spec.vararg is None


def find(module: ast.Module, qualname: str) -> FunctionNode | None:
    """Return a function of the top level."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == qualname and may_be_asked(node):
            return node
    return None


def ask_first(function: FunctionNode, place: str) -> None:
    """Let a function begin with the question."""
    options = function.args.kwarg.arg if function.args.kwarg else ""
    call = ast.Call(
        _name(NAME),
        [ast.Constant(place), _name(options)],
        [ast.keyword(name, _name(name)) for name in sorted(_PARAMETERS)],
    )
    answer = ast.NamedExpr(ast.Name(_RESULT, ast.Store()), call)
    given = ast.Compare(answer, [ast.IsNot()], [ast.Constant(None)])
    at = 1 if ast.get_docstring(function, clean=False) is not None else 0
    function.body.insert(at, ast.If(given, [ast.Return(_name(_RESULT))], []))


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def attend(place: str, options: dict[str, Any], /, **given: Any) -> tuple[Any, None] | None:  # noqa: ANN401 - its own arguments
    """Compute attention as ``sdpa`` does; ``None`` where the function is to do it itself."""
    from npufix.advisor.runtime.calls.at_run_time import (
        must_stay,
        refused,
        taken,
    )

    if must_stay(given["query"], given["key"], given["value"]):
        return None
    module = given["module"]
    interface = sys.modules.get("transformers.modeling_utils")
    known = getattr(interface, "ALL_ATTENTION_FUNCTIONS", {})
    config = getattr(module, "config", None)
    why = ""
    if "sdpa" not in known:
        why = "transformers with an attention interface"
    elif options.get("output_attentions") or getattr(config, "output_attentions", False):
        why = "no weights are asked for"
    elif options.get("head_mask") is not None or any("cap" in name for name in options):
        why = "no further arguments"
    if why:
        refused[place, why] += 1
        return None
    taken[place] += 1
    # Eager code applies the mask that it is given, and none if it is given none.
    own = {**options, "is_causal": False}
    dropout = given.pop("dropout") if module.training else given.pop("dropout") * 0.0
    result: tuple[Any, None] = known["sdpa"](dropout=dropout, **given, **own)
    return result
