"""The condition on which the new code runs in the portable form: what to ask, at no cost."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.modules.torch_names import DTYPES
from npufix.rewriters.graph.submodules import submodule

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from npufix.rewriters.edit.wording import Wording
    from npufix.rewriters.graph.dataflow import FunctionFlow


def is_simple(code: ast.expr) -> bool:
    """Tell whether an expression is a name, an attribute of one, or a literal."""
    while isinstance(code, ast.Attribute):
        code = code.value
    return isinstance(code, (ast.Name, ast.Constant))


def is_tensor(parameter: ast.arg) -> bool:
    """Tell whether a parameter of a rule is a tensor."""
    return parameter.annotation is not None and ast.unparse(parameter.annotation) in {
        "Tensor",
        "torch.Tensor",
    }


@dataclass(frozen=True, slots=True)
class Guard:
    """Finds the tensor to ask for its device."""

    flow: FunctionFlow
    wording: Wording
    hoisted: Mapping[str, ast.expr]
    """New local names, which do not exist yet where the guard stands."""

    def of(
        self, code: ast.expr, for_npu: Container[str], tensors: Sequence[ast.expr]
    ) -> str | None:
        """Return the condition for a new expression, "" if it runs everywhere.

        ``None`` if nothing is there that can be asked at no cost. ``for_npu`` are the functions
        that need an NPU, ``tensors`` the operands that are tensors.
        """
        for call in walk(code):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in for_npu:
                name = ast.unparse(call.func)
                if name.rpartition(".")[2][:1].isupper():  # a class: made of parameters
                    return f"{name.partition('.')[0]} is not None"
                asked = self._find_asked(call, tensors)
                if asked is None:
                    return None
                text = self.wording.written(ast.Attribute(asked, "device", ast.Load()))
                quote = self.wording.quote
                return f"{text}.type == {quote}npu{quote}"
        return ""

    def anyhow(self, tensors: Sequence[ast.expr]) -> str:
        """Return the condition for code that runs everywhere, if it is to run on an NPU only."""
        simple = (code for code in map(self._resolve, tensors) if is_simple(code))
        asked = next((code for code in simple if not isinstance(code, ast.Constant)), None)
        if asked is None:
            return ""
        quote = self.wording.quote
        device = ast.Attribute(self.wording.shown(asked), "device", ast.Load())
        return f"{self.wording.written(device)}.type == {quote}npu{quote}"

    def _find_asked(self, call: ast.Call, tensors: Sequence[ast.expr]) -> ast.expr | None:
        """Return the cheapest expression that says where a call runs."""
        inside = {id(node) for node in walk(call)}
        own = [self._resolve(node) for node in tensors if id(node) in inside]
        free = [code for code in own if is_simple(code) and not isinstance(code, ast.Constant)]
        found = free or [code for code in map(self._source, own) if code is not None]
        return self.wording.shown(found[0]) if found else None

    def _resolve(self, node: ast.expr) -> ast.expr:
        """Return the expression that a name stands for."""
        name = node.id if isinstance(node, ast.Name) else ""
        return self.hoisted.get(name) or self.wording.codes.get(name) or node

    def _source(self, code: ast.expr) -> ast.expr | None:
        """Return a tensor that must be on the device of ``code`` and costs nothing to ask."""
        match code:
            case ast.Name() | ast.Attribute() if is_simple(code):
                return code
            case ast.BinOp(left, _, ast.Constant()):
                return self._source(left)
            case ast.BinOp(ast.Constant(), _, operand) | ast.UnaryOp(_, operand):
                return self._source(operand)
            case ast.Subscript(value) if self._source(value) is not None:
                return code if is_simple(value) else self._source(value)
            case ast.Call(ast.Attribute(owner, name), arguments):
                return self._source_of_call(owner, name, arguments)
        return None

    def _source_of_call(
        self, owner: ast.expr, name: str, arguments: Sequence[ast.expr]
    ) -> ast.expr | None:
        dotted = self.flow.names.dotted(owner)
        if isinstance(owner, ast.Name) and owner.id == "self":
            cls = self.flow.cls
            made = submodule(self.flow.names, cls, name) if cls and arguments else None
            return self._source(arguments[0]) if made else None
        if dotted in {"torch", "torch.nn.functional"}:
            return (
                self._source(arguments[0]) if arguments and name in operators.PURE_METHODS else None
            )
        if dotted is not None or (name in operators.MOVES and not self._only_casts(arguments)):
            return None
        return self._source(owner) if name in operators.PURE_METHODS else None

    def _only_casts(self, arguments: Sequence[ast.expr]) -> bool:
        """Tell whether ``x.to(...)`` names a dtype and no device."""
        return bool(arguments) and all(
            self.flow.names.dotted(a) in DTYPES or ast.unparse(a).endswith("dtype")
            for a in arguments
        )
