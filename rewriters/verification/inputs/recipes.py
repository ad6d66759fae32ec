"""Bring an object of the user's class into being, by its own ``__init__`` where possible."""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch.overrides import TorchFunctionMode

from npufix.rewriters.verification.calls.values import (
    Find,
    MadeArgument,
    Spec,
    Value,
    find_nothing,
    materialise,
    seed_generator,
)
from npufix.rewriters.verification.inputs.configurations import (
    CONFIG_CLASS,
    StandInConfig,
    offer_configurations,
)
from npufix.rewriters.verification.inputs.objects import make_weights
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    Parameter,
    guess_attribute,
    guess_scalars,
    list_parameters,
)
from npufix.rewriters.verification.inputs.source.path_conditions import find_attributes_read
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from npufix.rewriters.verification.inputs.load import Loaded
    from npufix.rewriters.verification.inputs.target import Target

CONFIG = r"^(config|cfg|args|configuration|hparams|params|model_args|opts?)$"
_MOST_PARAMETERS = 5_000_000
_MOST_FURTHER_PARAMETERS = 50_000
"""For another object, once there is one: that of a real size says nothing new, slowly."""
_TRIES = 48
_DRAWN = frozenset({"rand", "randn"})
_DRAWN_INTO = frozenset({"normal_", "uniform_", "trunc_normal_", "bernoulli_", "exponential_"})
_BUILD_S = 5.0
_REPAIRS = 12
_MOST_CONFIGURATIONS = 2
_KNOWN = ("nn.", "torch.nn.")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make an object, the same way for the original and the patched class."""

    arguments: tuple[tuple[str, Spec], ...] = ()
    attributes: tuple[tuple[str, str], ...] | None = None
    """Not None: ``__init__`` does not run; these attributes are set, as what the values say."""
    chosen: tuple[tuple[str, object], ...] = ()
    """Values of attributes, of the object (``self.mode``) or of an argument (``config.mode``), that
    lead where the others do not."""

    def build(self, owner: type, find: Find = find_nothing) -> object:
        """Make the object; parameters get values that no forgotten weight can hide behind."""
        torch.default_generator.manual_seed(0)
        if self.attributes is None:
            made: object = owner(**self.given(find))
        else:
            made = self._without_init(owner, self.attributes)
        if isinstance(made, torch.nn.Module):
            _randomise(made)
        self._choose({"self": made})
        return made

    def given(self, find: Find) -> dict[str, object]:
        """Make the arguments of ``__init__``."""
        given = materialise(dict(self.arguments), "ordinary", 0, torch.float32, find=find)
        self._choose(given)
        return given

    def _choose(self, scope: Mapping[str, object]) -> None:
        for path, value in self.chosen:
            name, _, last = path.rpartition(".")
            first, *inner = name.split(".")
            holder = scope.get(first)
            for part in inner:
                holder = getattr(holder, part, None)
            if holder is not None and last in getattr(holder, "__dict__", ()):
                setattr(holder, last, value)

    @staticmethod
    def _without_init(owner: type, attributes: tuple[tuple[str, str], ...]) -> object:
        if inspect.isabstract(owner):
            owner = type(owner)(owner.__name__, (owner,), {"__module__": owner.__module__})
            owner.__abstractmethods__ = frozenset()  # type: ignore[attr-defined] # of ABCMeta
        made: object = object.__new__(owner)
        if isinstance(made, torch.nn.Module):
            torch.nn.Module.__init__(made)
        for name, what in attributes:
            setattr(made, name, _attribute(what, name, module=isinstance(made, torch.nn.Module)))
        return made

    def __str__(self) -> str:
        if self.attributes is not None:
            return "an instance made without __init__"
        given = ", ".join(f"{name}={spec}" for name, spec in self.arguments)
        chosen = " and ".join(f"{path} = {value!r}" for path, value in self.chosen)
        return f"{given} and {chosen}" if given and chosen else given or chosen


class StandInLayer(torch.nn.Module):
    """A layer that nothing is known of: no two of them compute the same."""

    def __init__(self, name: str) -> None:
        """Derive the function from the name."""
        super().__init__()
        self.scale, self.shift = torch.rand(2, generator=seed_generator(name)).tolist()

    def forward(self, x: object, *_others: object, **_keywords: object) -> object:
        """Return the first argument, changed."""
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            return x.tanh() * (0.5 + self.scale) + self.shift
        return x


def _attribute(what: str, name: str, *, module: bool) -> object:
    if what.startswith(_KNOWN):
        with torch.device("meta"):  # it may be large
            layer: torch.nn.Module = eval(what, {"nn": torch.nn, "torch": torch})  # noqa: S307 - constants alone
        # Where there are weights, sizes may not fit what else is made up.
        if next(layer.parameters(), None) is None:
            return layer
        what = "call"
    if what == "call":
        return torch.nn.SiLU() if "act" in name.lower() else StandInLayer(name)
    if what == "tensor":
        weight = torch.ones(WIDTH)
        return torch.nn.Parameter(weight) if module else weight
    plain = guess_scalars(Parameter(name, "", inspect.Parameter.empty))
    return plain[0].value if plain and isinstance(plain[0], Value) else None


def _randomise(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.is_floating_point():
                drawn = torch.randn(parameter.shape, generator=seed_generator(name))
                parameter.copy_(drawn * 0.5 + 0.25 * drawn.sign())
        for name, buffer in module.named_buffers():
            # As after some training: a mean of zero and a variance of one hide who forgets them.
            if name.endswith(("running_mean", "running_var")) and buffer is not None:
                drawn = torch.randn(buffer.shape, generator=seed_generator(name))
                buffer.copy_(drawn.abs() + 0.5 if name.endswith("var") else drawn * 0.5)


def generate_recipes(owner: type, method: str, loaded: Loaded) -> Iterator[Recipe]:
    """Yield recipes that work, the most faithful first."""
    found = 0
    for arguments in _constructions(owner, loaded):
        recipe = Recipe(tuple(arguments.items()))
        most = _MOST_FURTHER_PARAMETERS if found else _MOST_PARAMETERS
        made = try_call(lambda r=recipe, m=most: _checked(r, owner, loaded.find, m), _BUILD_S)  # type: ignore[misc] # a default binds it
        if not made.error:
            found += 1
            yield recipe
    if not found:
        recipe = Recipe(attributes=tuple(sorted(_read_attributes(owner, method).items())))
        if not try_call(lambda: recipe.build(owner, loaded.find), _BUILD_S).error:
            yield recipe


def _checked(recipe: Recipe, owner: type, find: Find, most: int) -> None:
    """Build the object, first without its values: the sizes of a real model take seconds."""
    with torch.device("meta"), _Undrawn():
        sketched = try_call(lambda: recipe.build(owner, find), _BUILD_S).value
    for made in (sketched, None):
        module = recipe.build(owner, find) if made is None else made
        count = sum(p.numel() for p in module.parameters()) if _is_module(module) else 0
        if count > most:
            raise MemoryError(f"the module has {count} parameters")


class _Undrawn(TorchFunctionMode):
    """Draws no numbers where there is no memory for them: that alone imports half of a compiler."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the torch function returns
        name = getattr(func, "__name__", "")
        if name in _DRAWN:
            return torch.empty(*args, **(kwargs or {}))
        if name in _DRAWN_INTO:
            return args[0]
        return func(*args, **(kwargs or {}))


def _is_module(made: object) -> TypeGuard[torch.nn.Module]:
    return isinstance(made, torch.nn.Module)


def _constructions(owner: type, loaded: Loaded) -> Iterator[dict[str, Spec]]:
    if owner.__init__ is object.__init__ or owner.__init__ is torch.nn.Module.__init__:  # type: ignore[misc] # of a class
        yield {}
        return
    signature = try_call(lambda: inspect.signature(owner), _BUILD_S).value
    if not isinstance(signature, inspect.Signature):
        return
    options: list[list[tuple[str, Spec | None]]] = []
    for parameter in list_parameters(signature):
        specs = _options(owner, parameter, loaded)
        if parameter.has_default:
            other = [s for s in specs if not _is(s, parameter.default)]
            options.append([(parameter.name, None), *((parameter.name, s) for s in other[:2])])
        elif specs:
            options.append([(parameter.name, s) for s in specs])
        else:
            options.append([(parameter.name, Value(WIDTH)), (parameter.name, Value(None))])
    seen: list[tuple[tuple[str, Spec | None], ...]] = []
    for combination in itertools.islice(_by_rank(options), _TRIES):
        if combination in seen:
            continue
        seen.append(combination)
        yield {name: spec for name, spec in combination if spec is not None}


def _is(spec: Spec, default: object) -> bool:
    return isinstance(spec, Value) and spec.value == default


def _by_rank(
    options: list[list[tuple[str, Spec | None]]],
) -> Iterator[tuple[tuple[str, Spec | None], ...]]:
    ranks = itertools.islice(itertools.product(*(range(min(len(o), 4)) for o in options)), 4096)
    # Second: nothing at its default, so that a forgotten ``eps`` cannot hide behind one that
    # happens to be the operator's own.
    off = tuple(1 if o[0][1] is None and len(o) > 1 else 0 for o in options)
    first, *others = sorted(ranks, key=sum)
    for combination in (first, off, *others):
        yield tuple(o[i] for o, i in zip(options, combination, strict=True))


def _options(owner: type, parameter: Parameter, loaded: Loaded) -> list[Spec]:
    if issubclass(owner, torch.optim.Optimizer) and not parameter.has_default:
        return make_weights(parameter.name, scale=0)
    bare = re.sub(r"\W.*", "", parameter.annotation.strip("'\"").rpartition(".")[2])
    annotated = loaded.find(bare) if bare else None
    specs: list[Spec] = []
    if isinstance(annotated, type) and annotated is not torch.Tensor and not parameter.has_default:
        specs += offer_configurations(annotated, bare)
    if re.search(CONFIG, parameter.name):
        if not specs:
            specs += offer_file_configurations(owner.__name__, loaded)
        specs.append(_invented(owner, parameter.name))
    return specs + guess_scalars(parameter)


def offer_file_configurations(owner: str, loaded: Loaded) -> list[Spec]:
    """Offer the configurations that the file knows, those that share the class's name first."""

    def unlike(name: str) -> int:
        pairs = zip(name.lower(), owner.lower(), strict=False)
        return -sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    specs: list[Spec] = []
    names = [n for n in loaded.names if re.search(CONFIG_CLASS, n)]
    for name in sorted(names, key=unlike)[:_MOST_CONFIGURATIONS]:
        kind = loaded.find(name)
        if isinstance(kind, type):
            specs += offer_configurations(kind, name)
    return specs


def guess_configurations(parameter: Parameter, target: Target, tree: ast.Module) -> list[Spec]:
    """Return configurations, for a parameter of a function that is one."""
    if not re.search(CONFIG, parameter.name) or parameter.has_default:
        return []
    asked = find_attributes_read(tree, target.qualname, parameter.name)
    if not asked:
        return []
    unknown = {n: WIDTH for n in asked if try_call(lambda n=n: guess_attribute(n), _BUILD_S).error}  # type: ignore[misc] # a default binds it
    invented = MadeArgument(lambda: StandInConfig(unknown), "a stand-in configuration")
    return [*offer_file_configurations(target.qualname, target.loaded), invented]


def _invented(owner: type, name: str) -> MadeArgument:
    """Find out by trying which attributes ``__init__`` reads that no name tells."""
    known: dict[str, object] = {}
    for _ in range(_REPAIRS):
        config = StandInConfig(known)
        outcome = try_call(lambda c=config: owner(**{name: c}), _BUILD_S)  # type: ignore[misc] # a default binds it
        asked = outcome.error.removeprefix("AttributeError: ")
        if outcome.kind != "AttributeError" or not asked.isidentifier() or asked in known:
            break
        known[asked] = WIDTH
    return MadeArgument(lambda: StandInConfig(copy.copy(known)), "a stand-in configuration")


def _read_attributes(owner: type, method: str) -> dict[str, str]:
    """Return what ``method`` reads from ``self``: as a tensor, a callable or a number."""
    found: dict[str, str] = {}
    made = _read_made(owner)
    queue, seen = [method], set[str]()
    while queue:
        name = queue.pop()
        if name in seen or (tree := _tree_of(owner, name)) is None:
            continue
        seen.add(name)
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
                continue
            if node.value.id != "self" or not isinstance(node.ctx, ast.Load):
                continue
            if hasattr(owner, node.attr):
                queue.append(node.attr)
            elif id(node) in called:
                found[node.attr] = made.get(node.attr, "call")
            elif re.search(r"weight|gamma|scale$|^g$|beta$|bias$", node.attr):
                found[node.attr] = "tensor"
            else:
                found.setdefault(node.attr, "number")
    return found


def _tree_of(owner: type, name: str) -> ast.Module | None:
    function = inspect.getattr_static(owner, name, None)
    source = try_call(lambda: inspect.getsource(function), _BUILD_S).value
    if not inspect.isfunction(function) or not isinstance(source, str):
        return None
    # not ``dedent``, which a comment or a docstring at the first column stops
    return ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)


def _read_made(owner: type) -> dict[str, str]:
    """Return the layers that ``__init__`` makes of constants: ``self.relu = nn.ReLU(True)``."""
    tree, found = _tree_of(owner, "__init__"), dict[str, set[str]]()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign):
            text, call = ast.unparse(node.value), node.value
            given = (
                [*call.args, *(k.value for k in call.keywords)]
                if isinstance(call, ast.Call)
                else [call]
            )
            plain = text.startswith(_KNOWN) and all(isinstance(a, ast.Constant) for a in given)
            for target in node.targets:
                found.setdefault(ast.unparse(target), set()).add(text if plain else "")
    return {
        name.removeprefix("self."): next(iter(texts))
        for name, texts in found.items()
        if name.startswith("self.") and len(texts) == 1 and "" not in texts
    }
