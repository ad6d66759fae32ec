"""Configurations of models with small sizes: the user's own class, or one that guesses by name."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import last_name, walk
from npufix.rewriters.verification.calls.values import MadeArgument, Spec, Value
from npufix.rewriters.verification.inputs.source.parameters import (
    SIZES,
    WIDTH,
    Parameter,
    find_named,
    guess_attribute,
    guess_scalars,
    list_parameters,
)
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_HEADS = r"num_(attention_)?heads$|n_?heads?$|num_heads|encoder_attention_heads"
_KV_HEADS = r"(key_value|kv)_heads|n_kv"
_HEAD_WIDTH = r"head_(dim|size)|dim_head|d_head|d_kv"
_MOST_HEADS = 4
CONFIG_CLASS = r"(Config|Configuration|Args|Arguments)$"
_BUILD_S = 5.0
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))
_OF_TABLES = frozenset(dir(dict))


class StandInConfig:
    """A configuration that invents what is asked of it, from the name.

    By attributes or by keys: ``config.dim``, ``config["dim"]``, ``config.get("dim", 64)``.
    """

    __slots__ = ("__dict__", "has_keys")
    has_keys: bool
    """Whether it was asked by keys."""

    def __init__(self, known: Mapping[str, object]) -> None:
        """Start from attributes that were asked for and could not be guessed before."""
        self.has_keys = False
        self.__dict__.update(known)

    def __getitem__(self, name: object) -> object:
        self.has_keys = True
        if not isinstance(name, str):
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        self.has_keys = True
        return name in self.__dict__

    def get(self, name: str, default: object = None) -> object:
        """Return what is guessed, if it is of the kind of the default, else the default."""
        self.has_keys = True
        guessed = try_call(lambda: getattr(self, name), _BUILD_S).value
        alike = default is None or type(guessed) is type(default)
        value = self.__dict__[name] = guessed if alike and guessed is not None else default
        return value

    def __getattr__(self, name: str) -> object:
        lower = name.lower()
        if lower.startswith("_") and "attn_impl" not in lower:
            raise AttributeError(name)
        # Kept, so that a counterexample can tell what was asked for.
        value = self.__dict__[name] = guess_attribute(name)
        return value


class WideConfig(StandInConfig):
    """One with wide heads: a quarter of one of four is no pair, which a rotation wants."""

    def __getattr__(self, name: str) -> object:
        value = super().__getattr__(name)
        if value == WIDTH and "head" not in name.lower():
            value = self.__dict__[name] = 4 * WIDTH
        return value


class LightConfig(StandInConfig):
    """The base of a configuration class whose own base cannot be imported here."""

    def __init__(self, **known: object) -> None:
        """Keep what the derived class passes on, and what it says with an annotation.

        The real base may make its fields of ``hidden_size: int = 4096``.
        """
        own = {
            name: value
            for kind in reversed(type(self).__mro__)
            for name in vars(kind).get("__annotations__", ())
            if isinstance(value := vars(kind).get(name), _PLAIN)
        }
        super().__init__({**own, **known})

    def __getattr__(self, name: str) -> object:
        other = getattr(type(self), "attribute_map", {}).get(name)
        return getattr(self, other) if isinstance(other, str) else super().__getattr__(name)


def list_settings(tree: ast.AST, root: str) -> dict[str, bool]:
    """Return what is read from ``root``, and whether that is a configuration of its own.

    ``root`` is what the code calls it. ``{"model": True, "dim": False, "lr": False}`` for
    ``cfg.model.dim`` and ``cfg["lr"]``, also where ``model = cfg.model`` stands between, or
    ``self.cfg = cfg``.
    """
    called = {id(n.func) for n in walk(tree) if isinstance(n, ast.Call)}
    names = {root: ""}  # what the code calls it, and what it calls its parts
    found: dict[str, bool] = {}
    for _ in range(2):  # methods that stand first may read what ``__init__`` keeps
        for node in walk(tree):
            read = _read(node) if id(node) not in called else None
            if read is not None:
                of, name = read
                known = names.get(ast.unparse(of))
                outer = _read(of) if known is None else None
                if outer is not None and names.get(ast.unparse(outer[0])) is not None:
                    known = outer[1]
                if known is not None:
                    found.setdefault(name, False)
                    found |= {known: True} if known else {}
            if isinstance(node, ast.Assign):
                kept = names.get(ast.unparse(node.value))
                read = _read(node.value)
                if kept is None and read is not None and ast.unparse(read[0]) in names:
                    kept = read[1]
                for target in node.targets if kept is not None else ():
                    names.setdefault(ast.unparse(target), kept or "")
    return found


class Answer:
    """A method of a stand-in, which always returns the same."""

    def __init__(self, value: object) -> None:
        """Remember what it returns."""
        self.value = value

    def __call__(self, *_given: object, **_named: object) -> object:
        """Return it, whatever is asked."""
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and self.value == other.value

    __hash__ = None  # type: ignore[assignment] # as of what it returns

    def __repr__(self) -> str:
        return f"(lambda *_given, **_named: {self.value!r})"


def list_answers(tree: ast.AST, root: str) -> dict[str, object]:
    """Return what parts of ``root`` are whose use says more than their name.

    Methods for ``graph.num_nodes()``, and what has several items for ``len(graph.etypes)``, ``for
    n in data.names`` and ``env.shape[0]``.
    """
    names = {root}
    for _ in range(2):
        for node in walk(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.value) in names:
                names |= set(map(ast.unparse, node.targets))
    found: dict[str, object] = {}
    for node in walk(tree):
        if isinstance(node, ast.Call) and _is_of(node.func, names):
            found[last_name(node.func)] = Answer(_guess(last_name(node.func)))
        for one in filter(lambda n: _is_of(n, names), _list_gone_through(node)):
            sized = find_named(SIZES, last_name(one).lower())
            found[last_name(one)] = [WIDTH] * 3 if sized else ["first", "second", "third"]
            if isinstance(node, ast.Subscript) and not sized and "name" not in last_name(one):
                found[last_name(one)] = [0.5, 1.5, 1.0]  # ``space.high[0]``
    return found


def _list_gone_through(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Call(ast.Name("len" | "list" | "tuple" | "enumerate" | "sorted"), [over, *_]):
            return [over]
        case ast.For(iter=over) | ast.comprehension(iter=over):
            return [over]
        case ast.Subscript(over, ast.Constant(int()) | ast.UnaryOp()):
            return [over]
    return []


def _is_of(node: ast.expr, names: Collection[str]) -> bool:
    whole = ast.unparse(node) in names  # itself, as it is kept
    return isinstance(node, ast.Attribute) and _first(node) in names and not whole


def _guess(name: str) -> object:
    bare = re.sub(r"^get_", "", name)
    return try_call(lambda: guess_attribute(bare), _BUILD_S).value or WIDTH


def _first(node: ast.expr) -> str:
    """Return what ``a`` or ``self.a`` a chain like ``self.a.b[0].c`` begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node.value, ast.Name):
            own = node.value.id == "self" and isinstance(node, ast.Attribute)
            return ast.unparse(node) if own else node.value.id
        node = node.value
    return ""


def _read(node: ast.AST) -> tuple[ast.expr, str] | None:
    """Return what a node reads a setting from, and which."""
    if isinstance(node, ast.Attribute):
        return None if node.attr in _OF_TABLES else (node.value, node.attr)
    if isinstance(node, ast.Subscript):
        of, key = node.value, node.slice
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and node.args
    ):
        of, key = node.func.value, node.args[0]
    else:
        return None
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return of, key.value
    return None


def invent(
    kind: type[StandInConfig], known: Mapping[str, object], inner: Collection[str]
) -> StandInConfig:
    """Make one that has others under the names ``inner``, each of which knows the same.

    For ``cfg.model.dim`` and ``cfg.model.mlp.dim``.
    """
    held = {name: kind(known) for name in inner}
    return kind({**known, **{name: kind({**known, **held}) for name in inner}})


def offer_configurations(kind: type, name: str) -> list[Spec]:
    """Offer a configuration with small sizes first, then as it is by default.

    ``name`` is what the user's module calls it: each version of the module has its own.
    """
    if issubclass(kind, enum.Enum):
        return []  # one of its members, which is no configuration
    label, sizes = f"{kind.__name__}()", _Sizes()
    if not try_call(kind, _BUILD_S).error:
        small = MadeArgument(lambda k: sizes.reduce(k()), f"{label} with small sizes", kind=name)
        return [small, MadeArgument(lambda k: k(), label, kind=name)]
    if fields := _guess_fields(kind):
        return [MadeArgument(lambda k: k(**fields), f"{label} with small sizes", kind=name)]
    if not list_defaults(kind):
        return []
    # It cannot be made here, but what its attributes are by default stands in its signature.
    return [
        MadeArgument(
            lambda k: sizes.reduce(StandInConfig(list_defaults(k))),
            f"the defaults of {label} with small sizes",
            kind=name,
        )
    ]


def _guess_fields(kind: type) -> dict[str, object]:
    """Return arguments of a class of plain fields, some of which have no default.

    What it computes of them is then its own: ``self.d_inner = self.expand * self.d_model``.
    """
    if not (dataclasses.is_dataclass(kind) or re.search(CONFIG_CLASS, kind.__name__)):
        return {}
    signature = try_call(lambda: inspect.signature(kind), _BUILD_S).value
    fields: dict[str, object] = {}
    for p in list_parameters(signature) if isinstance(signature, inspect.Signature) else ():
        guesses = [] if p.has_default else guess_scalars(p)
        plain = next((g.value for g in guesses if isinstance(g, Value)), None)
        # of a whole number whose name says nothing
        plain = WIDTH if plain is None and p.annotation in {"", "int"} else plain
        fields |= {} if p.has_default else {p.name: plain}
    fields |= choose_small_sizes({**list_defaults(kind), **fields})
    runs = None not in fields.values() and not try_call(lambda: kind(**fields), _BUILD_S).error
    return fields if runs else {}


def list_defaults(kind: type) -> dict[str, object]:
    """Return what the arguments of a class are by default."""
    given = try_call(lambda: inspect.signature(kind), _BUILD_S).value
    if not isinstance(given, inspect.Signature):
        return {}
    return {n: p.default for n, p in given.parameters.items() if p.default is not p.empty}


class _Sizes:
    """Small sizes in place of large ones; another one where two versions are not the same."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}

    def reduce(self, made: object) -> object:
        for name, value in choose_small_sizes(vars(made)).items():
            small = value
            if getattr(made, name) != self._first.setdefault(name, getattr(made, name)):
                small *= 2
            setattr(made, name, small)
        return made


def choose_small_sizes(sizes: Mapping[str, object]) -> dict[str, int]:
    """Return smaller sizes, which go together, for those that are large.

    Heads get a width of four: with two, halves and pairs are the same.
    """
    ints = {n: v for n, v in sizes.items() if type(v) is int and v > 1}
    heads = [n for n in ints if re.search(_HEADS, n) and not re.search(_KV_HEADS, n)]
    most = max((ints[n] for n in heads), default=0)
    found: dict[str, int] = {}
    for name, value in ints.items():
        if name in heads:
            if value > _MOST_HEADS:
                found[name] = _MOST_HEADS
        elif re.search(_KV_HEADS, name):
            small = value if most <= _MOST_HEADS else _MOST_HEADS if value == most else 2
            found |= {name: small} if small < value else {}
        elif re.search(_HEAD_WIDTH, name) and value > WIDTH:
            found[name] = 4
        elif value > 2 * WIDTH:
            guessed = guess_scalars(Parameter(name, "int", inspect.Parameter.empty))
            likely = guessed[0].value if guessed and isinstance(guessed[0], Value) else None
            # ``decoder_embedding``, which is called like a tensor
            likely = likely if find_named(SIZES, name.lower()) else WIDTH
            if isinstance(likely, int):
                # The width of all heads.
                found[name] = 2 * WIDTH if heads and likely == WIDTH else likely
    return found
