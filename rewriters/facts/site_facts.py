"""Answers the questions of a rule's conditions at one place, from the source or the dump."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.facts import module_facts, origins
from npufix.rewriters.facts.activations import activation
from npufix.rewriters.facts.attention_facts import AttentionFacts
from npufix.rewriters.facts.constants import number
from npufix.rewriters.facts.index_facts import is_device, is_position, names_of
from npufix.rewriters.facts.kinds.value_kinds import KEEPS_DTYPE, ValueKinds, list_choices
from npufix.rewriters.facts.occasions import is_in_loop, occasion
from npufix.rewriters.facts.ranks import RelativeRank
from npufix.rewriters.facts.shapes import Shapes
from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import is_buffer, is_plain_attribute
from npufix.rewriters.graph.modules.neighbours import foreign_bases
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.names import ModuleNames
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.match.matching import Match

_LAST, _BEFORE_LAST = -1, -2
_PARTS = frozenset({Op.CAST, Op.GETITEM, Op.ITEM, "chunk", "split", "unbind", "unsqueeze"})
_PROJECTION = re.compile(r"linear$|module:\w*Linear")
"""Linear layers, those of a file's own too: ``LinearNoBias = partial(nn.Linear, bias=False)``."""
_METADATA = frozenset({Op.DTYPE_OF, Op.RANK, Op.SHAPE, Op.SIZE})


def _finfo_dtype(node: Node) -> Node | None:
    """Return the dtype of ``torch.finfo(dtype).min``."""
    if node.op == Op.ATTR and node.args[0].op == "finfo" and len(node.args[0].args) == 1:
        return node.args[0].args[0]
    return None


class SourceFacts(ValueKinds, AttentionFacts):
    """What the source proves; implements ``npufix.rules.substitution.Site``."""

    def __init__(self, flow: FunctionFlow, match: Match) -> None:
        self.flow = flow
        self.match = match
        self.shapes = Shapes(flow, match.evaluation.ranks, match.epoch)

    def literal(self, name: str) -> object:
        """Return the literal that a variable matched, ``None`` if it is no literal."""
        node = self.match.bindings[name]
        return node.value if node.op == Op.CONST else number(node)

    def is_argument(self, name: str) -> bool:
        """Tell whether the value is an argument of the function."""
        return self.match.bindings[name].op == Op.PARAM

    def is_plain(self, name: str) -> bool | None:
        """Tell whether the value is a setting: a literal, a parameter, an attribute from one."""
        node = self.match.bindings[name]
        if node.op in {Op.CONST, Op.GLOBAL} or _finfo_dtype(node) is not None:
            return True
        if node.op == Op.ATTR:
            return is_plain_attribute(self.flow, node)
        return node.op == Op.PARAM and not self._is_tensor(node)

    def same_device(self, first: str, second: str) -> bool | None:
        """Tell whether nothing suggests that two tensors are on different devices."""
        if self.is_test_of(second, first):
            return True
        for name in (first, second):
            for node in _holding(self.match.bindings[name]):
                keywords = node.value if isinstance(node.value, tuple) else ()
                if node.op.removesuffix("(*)") in operators.FACTORIES and "device" not in keywords:
                    return None
                if node.op in {"cpu", *operators.TO_DEVICE}:
                    return None
        return True

    def ndim(self, name: str) -> int | None:
        """Return the number of dimensions of a tensor."""
        rank = self.shapes.rank(self.match.bindings[name])
        return rank if isinstance(rank, int) else None

    def least_ndim(self, name: str) -> int:
        """Return how many dimensions a tensor has at least."""
        return self.shapes.least_rank(self.match.bindings[name])

    def size(self, name: str, dim: int) -> int | None:
        """Return the length of one dimension, if it is a known number."""
        node = self.match.bindings[name]
        if dim < 0:
            return self.shapes.length_from_end(node, dim)
        shape = self.shapes.shape(node)
        return shape[dim] if shape is not None and dim < len(shape) else None

    def is_tensor(self, name: str) -> bool | None:
        """Tell whether the value is a torch tensor."""
        return self._is_tensor(self.match.bindings[name])

    def is_bool_tensor(self, name: str) -> bool | None:
        """Tell whether the value is a tensor of dtype bool."""
        return self._is_mask(self.match.bindings[name])

    def dtype(self, name: str) -> str | None:
        """Return the dtype of a tensor."""
        return self._dtype(self.match.bindings[name])

    def is_number(self, name: str) -> bool | None:
        """Tell whether the value is a Python number."""
        node = self.match.bindings[name]
        if self.shapes.is_number(node) or _finfo_dtype(node) is not None:
            return True
        return None if self._may_be_number(node) else False

    def is_limit_of(self, name: str, tensor: str) -> bool | None:
        """Tell whether a number is the ``finfo(x.dtype).min`` or ``max`` of a tensor."""
        dtype = _finfo_dtype(self.match.bindings[name])
        x = self.match.bindings[tensor]
        return dtype is not None and dtype.op == Op.DTYPE_OF and dtype.args[0] is x

    def is_centred(self, name: str) -> bool | None:
        """Tell whether a mean was subtracted to get the value."""
        return any(
            node.op == "sub" and any(part.op == "mean" for part in node.args[1].walk())
            for node in self.match.bindings[name].walk()
        )

    def is_detached(self, name: str) -> bool | None:
        """Tell whether gradients are cut off on purpose."""
        return any(n.op in {"data", "detach"} for n in self.match.bindings[name].walk())

    def is_projected(self, name: str) -> bool:
        """Tell whether a layer computes the value, or the whole that it is a part of."""
        return _is_projected(self.match.bindings[name])

    def is_power_of_length(self, name: str, weight: str, power: float) -> bool:
        """Tell whether a number is made as the power of the length that a weight is made with."""
        found = self.match.bindings
        return module_facts.is_power_of_length(self.flow, found[name], found[weight], power)

    def is_buffer(self, name: str) -> bool | None:
        """Tell whether a tensor belongs to a module and takes no gradient."""
        return is_buffer(self.flow, self.match.bindings[name])

    def is_int(self, name: str) -> bool | None:
        """Tell whether the value is a Python int."""
        return self._is_int(self.match.bindings[name])

    def same_dtype(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors have one dtype."""
        left, right = (self.match.bindings[name] for name in (first, second))
        if self._dtype_node(left) is self._dtype_node(right):
            return True
        kinds = {self._has_fractions(left), self._has_fractions(right)}
        return False if kinds == {True, False} else None

    def _dtype_node(self, node: Node) -> Node:
        """Return the dtype of a tensor as the graph knows it: of what it is a view or copy of."""
        while node.op in KEEPS_DTYPE and node.args:
            node = node.args[0]
        return node.args[1] if node.op == Op.CAST else self.flow.graph.node(Op.DTYPE_OF, node)

    def same_ndim(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors have one number of dimensions."""
        more = self.more_dims(first, second)
        if more is None and self._is_wider(first, second):
            return False
        return None if more is None else more == 0

    def _is_wider(self, first: str, second: str) -> bool:
        """Tell whether a tensor is computed with another, widened: ``x / n.unsqueeze(1)``."""
        x, rank = self.match.bindings[first], self.shapes.rank(self.match.bindings[second])
        return x.op in operators.BROADCAST and any(
            isinstance(part, RelativeRank)
            and isinstance(rank, RelativeRank)
            and part.base is rank.base
            and part.more > rank.more
            for part in map(self.shapes.rank, x.args)
        )

    def covers(self, name: str, tensor: str) -> bool | None:
        """Tell whether a value has all dimensions of a tensor: it is computed with them."""
        value, x = (self.match.bindings[n] for n in (name, tensor))
        return True if self.shapes.covers(value, x) else None

    def more_dims(self, first: str, second: str) -> int | None:
        """Return how many dimensions the first tensor has more than the second."""
        left, right = (self.shapes.rank(self.match.bindings[name]) for name in (first, second))
        if isinstance(left, int) and isinstance(right, int):
            return left - right
        if isinstance(left, RelativeRank) and isinstance(right, RelativeRank):
            return left.more - right.more if left.base is right.base else None
        return None

    def is_position(self, name: str) -> bool | None:
        """Tell whether a tensor holds positions that do not count from the end."""
        return is_position(self.match.bindings[name])

    def is_indicator(self, name: str) -> bool | None:
        """Tell whether a tensor holds nothing but zeros and ones: it is a mask, or was one."""
        node = self.match.bindings[name]
        while node.op == Op.CAST:
            node = node.args[0]
        return True if self._is_bool(node) else None

    def is_made_like(self, name: str) -> bool:
        """Tell whether a tensor has the dtype of another: ``torch.zeros(n, dtype=x.dtype)``."""
        node = self.match.bindings[name]
        while node.args and node.op in KEEPS_DTYPE | {Op.SETITEM}:
            node = node.args[0]
        return node.op in operators.FACTORIES and any(arg.op == Op.DTYPE_OF for arg in node.args)

    def is_device(self, name: str) -> bool | None:
        """Tell whether the value is a device, not a dtype or a tensor."""
        return is_device(self.match.bindings[name])

    def is_unique(self, name: str) -> bool | None:
        """Tell whether the entries along the last dimension are all different."""
        node = self.match.bindings[name]
        while node.op == Op.CAST:
            node = node.args[0]
        source = node.args[0] if node.op == Op.ITEM else node
        if source.epoch != self.match.epoch:
            return None  # something may have been written into the indices since
        if node.op == Op.ITEM and node.value == 1 and node.args[0].op == "topk":
            return True if node.args[0].args[2].value == _LAST else None
        if node.op == "argsort":
            return True if node.args[1].value == _LAST else None
        return True if node.op == "randperm" else None

    def is_sinusoid(self, name: str) -> bool | None:
        """Tell whether the value is a sine or cosine that nothing has scaled."""
        plain = origins.is_sinusoid(self.match.bindings[name]) and self._is_unchanged(name)
        return True if plain else None

    def same_projection(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors are made by layers of one width."""
        bound = self.match.bindings
        return origins.same_projection(self.flow, bound[first], bound[second])

    def activation(self, name: str) -> str | None:
        """Return which function an activation out of a table is."""
        return activation(self.flow, self.match.bindings[name])

    def setting(self, name: str, parameter: str) -> str | None:
        """Return the code of an argument of a submodule's constructor, "" for its default."""
        return module_facts.setting(self.flow, self.match.bindings[name], parameter)

    def normalized_dims(self, name: str) -> int | None:
        """Return over how many dimensions a norm among the submodules computes its mean."""
        return module_facts.count_normalized_dims(self.flow, self.match.bindings[name])

    def listed(self, name: str) -> int | None:
        """Return how many tensors a list names one by one, ``None`` if it is none such."""
        node = self.match.bindings[name]
        # ``[torch.zeros(1, device=device)]``, ``[log_alpha.requires_grad_()]``
        single = operators.TABLE.keys() | {Op.ATTR, Op.PARAM, "requires_grad_"}
        named = node.op == Op.LIST and all(a.op.removesuffix("(*)") in single for a in node.args)
        return len(node.args) if named else None

    def operator(self, name: str) -> str:
        """Return the operation that computed the value, in all branches: ``module:Dropout``.

        One of several results of an unknown call is ``item:call``.
        """
        node = self.match.bindings[name]
        made = list_choices(node) if node.op == Op.PHI else [node]
        of_calls = all(n.op == Op.ITEM and n.args[0].op == Op.CALL for n in made)
        return "item:call" if of_calls else node.op

    def mentions_beside(self, *words: str) -> bool:
        """Tell whether the class, or without one the module, uses one of these names."""
        tree = self.flow.cls or self.flow.names.tree
        return tree is not None and module_facts.uses(tree, words)

    def mentions(self, *words: str) -> bool:
        """Tell whether the module uses one of these names, wherever.

        So does a module that a base of the class comes from: ``BaseTrainer.train_step`` takes the
        steps of the optimizer that ``Trainer.configure_optimizers`` makes.
        """
        return any(module_facts.mentions(names, words) for names in self._modules())

    def arguments(self, method: str) -> Sequence[Mapping[str, str]]:
        """Return the arguments of each call of a method in the module, as they are written."""
        modules = {id(names): names for names in self._modules()}.values()
        return [call for names in modules for call in module_facts.arguments(names, method)]

    def _modules(self) -> Iterator[ModuleNames]:
        """Yield the module, and for each base of its class the one that it comes from."""
        own, cls = self.flow.names, self.flow.cls
        yield own
        if cls is not None:  # asked for only then: modules are read for it
            yield from (there for there, _ in foreign_bases(own, cls))

    def is_scaled(self) -> bool | None:
        """Tell whether one product is all that is made of what the pattern computes, cast or not.

        Not so where one branch multiplies it and another does not, or by another weight.
        """
        root = self.match.evaluation.node
        nodes = {e.node for e in self.flow.evaluations} | {o.node for o in self.flow.observables}
        same = {root, *(n for n in nodes if n.op == Op.CAST and n.args[0] is root)}
        users = {
            n for n in nodes | {arg for n in nodes for arg in n.args if arg.op == Op.PHI}
            if n.op not in _METADATA and n not in same and not same.isdisjoint(n.args)
        }  # fmt: skip
        scales = [arg for n in users if n.op == "mul" for arg in n.args]
        own = [arg for arg in scales if arg not in same and not self.shapes.is_number(arg)]
        if not own or any(map(_is_projected, own)):
            return False
        if any(seen.node in same for seen in self.flow.observables):
            return False
        places = {  # a name that the product has is read, and computes nothing
            id(e.code)
            for e in self.flow.evaluations
            if e.node in users and not isinstance(e.code, ast.Name)
        }
        return len(users) == len(places) == 1

    def finds_for_others(self, mask: str) -> bool:
        """Tell whether others want the places of a mask that the pattern writes to.

        Not so those who write a number there as well, which the rule changes too.
        """
        root, value = self.match.evaluation.node, self.match.bindings[mask]
        found = {n for n in root.args[1].walk() if n.op.startswith("nonzero") and value in n.args}
        places = {n for n in root.args[1].walk() if not found.isdisjoint(n.walk())}
        nodes = {e.node for e in self.flow.evaluations} - {root, *places}
        users = (n for n in nodes if not places.isdisjoint(n.args))
        seen = any(o.node in places for o in self.flow.observables)
        return seen or any(
            n.op != Op.SETITEM or not self.shapes.is_number(n.args[2]) for n in users
        )

    def may_be_batch(self, name: str) -> bool:
        """Tell whether code shows more than two dimensions: ``x.mT``, ``x.transpose(1, 2)``."""
        parts = set(self.match.bindings[name].walk())
        return any(
            _counts_from_end(e.node) and (e.node in parts or e.node.args[0] in parts)
            for op in ("transpose", "adjoint", Op.ATTR, Op.SIZE)
            for e in self.flow.by_operation.get(op, ())
        )

    def is_cast_back(self, name: str) -> bool:
        """Tell whether what the pattern computes is cast to the dtype of a value that it reads."""
        root, value = self.match.evaluation.node, self.match.bindings[name]
        dtype = self._dtype_node(value)
        casts = (e.node for e in self.flow.by_operation.get(Op.CAST, ()))
        return any(cast.args[0] is root and cast.args[1] is dtype for cast in casts)

    def called(self, name: str, *, in_test: bool = False) -> Sequence[str]:
        """Return what a value is called, or with ``in_test`` what it is compared as."""
        node = self.match.bindings[name]
        if in_test and node.op in operators.COMPARISONS:
            node = node.args[0]
        return names_of(node, self.match.evaluation.names)

    def brings_no_decay(self) -> bool:
        """Tell whether the first argument of a call holds parameters, no groups with a decay."""
        params = module_facts.first_argument(self.match.evaluation.code, "params")
        return params is not None and module_facts.brings_no_decay(self.flow.function, params)

    def runs_often(self) -> bool:
        """Tell whether it runs in each step, for all that names and loops tell."""
        return occasion(self.flow, self.match) is Occasion.STEP

    def runs_in_loop(self) -> bool:
        """Tell whether it stands in a loop: several times in one call."""
        return is_in_loop(self.flow, self.match.evaluation.statement.lineno)

    def is_left_out(self, name: str) -> bool:
        """Tell whether a call in the module leaves an argument away, which is None then."""
        return module_facts.is_left_out(self.flow, self.match.bindings[name])

    def is_without_gradients(self) -> bool | None:
        """Tell whether the code says that no gradient is wanted."""
        return module_facts.is_without_gradients(self.flow, self.match)


def _holding(value: Node) -> Iterator[Node]:
    """Yield what a value is computed of, without what only says where: ``i`` of ``x[i]``.

    An index may lie on the host, whatever it picks from.
    """
    todo = [value]
    seen: set[Node] = set()
    for node in todo:  # grows
        if node not in seen:
            seen.add(node)
            yield node
            todo += node.args[:1] if node.op == Op.GETITEM else node.args


def _counts_from_end(node: Node) -> bool:
    """Tell whether a node takes one of the last two dimensions, however many are in front."""
    if node.op == Op.ATTR:
        return node.value == "mH"
    dims = [arg.value for arg in node.args[1:] if isinstance(arg.value, int)]
    whole = bool(dims) and len(dims) == len(node.args) - 1
    return node.op == "adjoint" or (
        whole and ((max(dims) < 0 and _BEFORE_LAST in dims) or max(dims) > 1)
    )


def _is_projected(node: Node) -> bool:
    while True:
        terms = [arg for arg in node.args if arg.op != Op.CONST]
        if node.op in _PARTS and node.args:
            node = node.args[0]
        elif node.op == "add" and len(terms) == 1:
            node = terms[0]  # ``1 + self.to_gamma(condition)``, of adaptive norms
        else:
            return _PROJECTION.match(node.op) is not None
