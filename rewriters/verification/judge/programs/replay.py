"""What a counterexample program does with its call; its text is part of every such program.

So it imports torch alone, and says again, shorter, what ``calls.observe`` (``observe``, ``leaves``,
``seed_everything``), ``calls.training``, ``inputs.recipes`` and ``judge.judge`` do: whoever changes
what is observed there changes it here, or programs no longer show what was found.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import random
import types
import unittest.mock
import zlib
from typing import Any

import torch


def generator(*seeds: object) -> torch.Generator:
    """Return a generator seeded by names, the same in every process."""
    return torch.Generator().manual_seed(zlib.crc32(repr(seeds).encode()))


def seed_everything(seed: int) -> None:
    """Give both versions the same random numbers."""
    random.seed(seed)
    torch.manual_seed(seed)


def with_weights(made: Any, dtype: torch.dtype, *tables: str) -> Any:  # noqa: ANN401
    """Give an object weights drawn from their names, and its floating tensors a dtype.

    But for its tables, which no method writes.
    """
    if isinstance(made, torch.nn.Module):
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if parameter.is_floating_point():
                    drawn = torch.randn(parameter.shape, generator=generator(name))
                    parameter.copy_(drawn * 0.5 + 0.25 * drawn.sign())
            for name, buffer in made.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    drawn = torch.randn(buffer.shape, generator=generator(name))
                    buffer.copy_(drawn.abs() + 0.5 if name.endswith("var") else drawn * 0.5)
        made.to(dtype)
    for part in made.modules() if isinstance(made, torch.nn.Module) else (made,):
        for name, value in list(vars(part).items()):
            floats = isinstance(value, torch.Tensor) and value.is_floating_point()
            if floats and name not in tables:
                vars(part)[name] = value.to(dtype)
    return made


def filled(made: Any, name: str, number: float) -> Any:  # noqa: ANN401
    """Give one weight of an object the same number everywhere."""
    getattr(made, name).data.fill_(number)
    return made


def coarsened(made: Any) -> Any:  # noqa: ANN401
    """Round the weights of an object to whole numbers and halves."""
    for weight in made.parameters():
        weight.data.mul_(2).round_().div_(2)
    return made


def leaves(value: Any, name: str, depth: int = 0) -> dict[str, Any]:  # noqa: ANN401
    """Return the tensors and plain values inside of a result, by name."""
    if isinstance(value, float):
        return {name: torch.tensor(value, dtype=torch.float32)}
    plain = {torch.Tensor, torch.nn.Parameter}
    if value is None or type(value) in plain or isinstance(value, (bool, int, str, bytes)):
        return opened_up(value, name)
    if isinstance(value, (set, frozenset)):
        return {name: sorted(map(repr, value))}
    found: dict[str, Any] = {f"type of {name}": type(value).__name__}
    if hasattr(value, "__next__") and type(value).__module__ in {"builtins", "itertools"}:
        found = {f"type of {name}": "iterator"}
        value = list(itertools.islice(value, 256))
    if isinstance(value, torch.Tensor):
        return found | opened_up(value, name)
    if isinstance(value, dict):
        found |= {f"order of {name}": [*value]} if len(value) > 1 else {}
        items = [(f"{name}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple, collections.deque)):
        items = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, torch.optim.Optimizer):
        items = [(f"{name}.param_groups", value.param_groups)]
    else:
        items = [(f"{name}.{key}", item) for key, item in getattr(value, "__dict__", {}).items()]
    for inner, item in items if depth < 6 and not callable(value) else ():  # noqa: PLR2004
        found |= leaves(item, inner, depth + 1)
    return found


def other_names(result: Any, passed: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Return which lists and dictionaries of a result are one, or are one of the arguments."""
    first: dict[int, str] = {}
    found: dict[str, Any] = {}
    left = [*passed.items(), ("result", result)]
    for name, value in left:
        same = first.setdefault(id(value), name) if isinstance(value, (list, dict, set)) else name
        if same != name:
            found[f"the other name of {name}"] = same
            continue
        items: Any = enumerate(value) if isinstance(value, (list, tuple)) else ()
        items = value.items() if isinstance(value, dict) else items
        left += [(f"{name}[{key!r}]", item) for key, item in items]
    return {n: v for n, v in found.items() if n.startswith("the other name of result")}


def opened_up(value: Any, name: str) -> dict[str, Any]:  # noqa: ANN401
    """Return a value; a tensor as dense ones if it is none."""
    if not isinstance(value, torch.Tensor):
        return {name: value}
    if value.is_nested:
        return {f"{name}[{n}]": part for n, part in enumerate(value.unbind())}
    if value.dtype in {torch.float8_e4m3fn, torch.float8_e5m2}:
        return {f"dtype of {name}": str(value.dtype), name: value.to(torch.bfloat16)}
    if value.layout == torch.strided or value.is_mkldnn:
        return {name: value}
    kept = value._nnz() if value.layout != torch.sparse_coo or value.is_coalesced() else None  # noqa: SLF001
    said = {f"layout of {name}": str(value.layout), f"elements of {name}": kept}
    return said | {name: value.to_dense()}


def taken_apart(value: Any) -> Any:  # noqa: ANN401
    """Return what tells a module that is a result from another; anything else as it is."""
    if type(value) in {list, tuple}:
        return type(value)(map(taken_apart, value))
    if not isinstance(value, torch.nn.Module):
        return value
    found = value.state_dict(keep_vars=True)
    for name, part in value.named_modules():
        found[f"{name}.class".lstrip(".")] = type(part).__name__
        own = vars(part) if type(part).__module__.startswith("torch.nn.modules") else {}
        for key, held in {**own, "training": part.training}.items():
            if isinstance(held, (int, float, str, tuple)) and not key.startswith("_"):
                found[f"{name}.{key}".lstrip(".")] = held
    return found


def state_of(made: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the tensors and plain attributes of the object that is called."""
    if not isinstance(made, torch.nn.Module):
        weights = [p for g in getattr(made, "param_groups", ()) for p in g["params"]]
        named = {f"self.params[{n}]": weight for n, weight in enumerate(weights)}
        held: dict[str, Any] = {}
        for k, v in getattr(made, "__dict__", {}).items():
            held |= held_as(v, f"self.{k}")
        return named | ({} if weights else held)  # of an optimiser, the weights tell
    return {
        f"self.{prefix}.{name}" if prefix else f"self.{name}": value
        for prefix, part in made.named_modules()
        for name, value in (
            *part.named_parameters(recurse=False),
            *part.named_buffers(recurse=False),
            *((k, v) for k, v in vars(part).items() if not k.startswith("_")),
        )
    }


def held_as(value: Any, name: str) -> dict[str, Any]:  # noqa: ANN401
    """Return what an attribute is; of a module what it holds, and the gradients there are."""
    if isinstance(value, torch.nn.Module):
        gradients = {f"{name}.{n}.grad": w.grad for n, w in value.named_parameters()}
        return modules_in({name: value}) | {n: g for n, g in gradients.items() if g is not None}
    return leaves(value, name) if isinstance(value, (dict, list)) else {name: value}


def modules_in(passed: dict[str, Any]) -> dict[str, Any]:
    """Return what the modules among arguments hold, and what optimisers keep of steps."""
    lists = {n: v for n, v in passed.items() if isinstance(v, list)}
    every = {**passed, **{f"{n}[{at}]": m for n, v in lists.items() for at, m in enumerate(v)}}
    modules = {n: v for n, v in every.items() if isinstance(v, torch.nn.Module)}
    kept = {
        f"{name}.state[{at}]['momentum_buffer']": one.state.get(weight, {}).get("momentum_buffer")
        for name, one in every.items()
        if isinstance(one, torch.optim.SGD)
        for at, weight in enumerate(w for group in one.param_groups for w in group["params"])
    }
    return {n: v for n, v in kept.items() if v is not None} | {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict(keep_vars=True).items()
    }


def surroundings_of(module: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the data of a module and of its classes and functions, and the settings of torch."""
    found: dict[str, Any] = {
        "whether torch computes gradients": torch.is_grad_enabled(),
        "the inference mode of torch": torch.is_inference_mode_enabled(),
        "the default dtype of torch": str(torch.get_default_dtype()),
        "the autocast of torch on the CPU": torch.is_autocast_enabled("cpu"),
    }
    for name, value in list(getattr(module, "__dict__", {}).items()):
        if name.startswith("__") or isinstance(value, types.ModuleType):
            continue
        if isinstance(value, (type, types.FunctionType)):
            own = vars(value).items() if value.__module__ == module.__name__ else ()
            for key, item in own:
                if not key.startswith("__") and not callable(item):
                    found |= leaves(item, f"{name}.{key}")
        elif not callable(value):
            found |= leaves(value, name)
    return {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in found.items()}


def elsewhere(made: Any, arguments: dict[str, Any]) -> Any:  # noqa: ANN401
    """Return the object and the arguments on a device that is not the CPU."""
    moved = {
        name: value.to("meta") if isinstance(value, (torch.Tensor, torch.nn.Module)) else value
        for name, value in arguments.items()
    }
    return made.to("meta") if isinstance(made, torch.nn.Module) else made, moved


class OneDevice(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch has no other
    """Refuses what devices refuse and ``meta`` does not always: tensors of two devices.

    Numbers of the host may be an index, or lengths of sequences.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_indexed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        name = func.overloadpacket.__name__.strip("_")
        flat = torch.utils._pytree.tree_leaves((args, kwargs))  # noqa: SLF001 - same
        found = {v.device.type for v in flat if isinstance(v, torch.Tensor) and v.dim()}
        may = name in {"copy", "ctc_loss", "lstm", "gru"} or "packed" in name
        by_host = name == "index" or name.startswith(("index_put", "unsafe_index"))
        if len(found) > 1 and not may:
            if not by_host or args[0].device.type == "cpu":
                raise RuntimeError("Expected all tensors to be on the same device")
            self.is_indexed = True
        return func(*args, **(kwargs or {}))


class NamedDevice(torch.overrides.TorchFunctionMode):
    """Has ``device="cuda"`` mean ``meta``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        def mean(value: Any) -> Any:  # noqa: ANN401
            named = isinstance(value, (str, torch.device)) and str(value).partition(":")[0] in {
                "cuda",
                "npu",
            }
            return "meta" if named else value

        return func(*map(mean, args), **{key: mean(v) for key, v in (kwargs or {}).items()})


def on_meta(call: Any) -> Any:  # noqa: ANN401
    """Return a call that runs as on a device: ``meta``, which ``x.cuda()`` means as well."""

    def move(held: Any, *_: Any, **_words: Any) -> Any:  # noqa: ANN401
        return held.to("meta")

    def called(passed: Any) -> Any:  # noqa: ANN401
        with contextlib.ExitStack() as stack:
            for kind, name in itertools.product((torch.Tensor, torch.nn.Module), ("cuda", "npu")):
                patched = unittest.mock.patch.object(kind, name, move, create=True)
                stack.enter_context(patched)
            stack.enter_context(NamedDevice())
            stack.enter_context(OneDevice())
            return call(passed)

    return called


def describe_results(
    made: Any,  # noqa: ANN401
    passed: dict[str, Any],
    results: dict[str, Any],
    held: dict[str, int],
) -> dict[str, Any]:
    """Return what a call has done to its arguments and its object, and whose memory it returns."""
    after = {k: v for key, value in passed.items() for k, v in leaves(value, key).items()}
    after |= state_of(made)
    after |= modules_in(passed)
    seen: dict[str, Any] = {}
    if isinstance(made, torch.nn.Module):
        trained = sorted(f"self.{n}" for n, _ in made.named_parameters())
        seen["parameters and buffers"] = trained + sorted(made.state_dict())
    seen |= {
        f"memory of {name}": "as before" if v.data_ptr() == held[name] else "another"
        for name, v in {**state_of(made), **modules_in(passed)}.items()
        if name in held and isinstance(v, torch.Tensor)
    }
    seen |= {f"{name} after the call": value for name, value in after.items()}
    for name, value in {**passed, "self": made, **after}.items():
        if isinstance(value, torch.nn.Module):
            hooks = (k for k in dir(value) if k.endswith("_hooks"))
            every = (getattr(part, kind, ()) for kind in hooks for part in value.modules())
            seen[f"hooks of {name}"] = sum(len(one) for one in every if isinstance(one, dict))
        elif isinstance(value, torch.Tensor):
            seen[f"requires_grad of {name} after the call"] = value.requires_grad
    tensors = {n: v for n, v in {**after, **results}.items() if isinstance(v, torch.Tensor)}
    for name, value in results.items():
        if isinstance(value, torch.Tensor):
            seen[f"requires_grad of {name}"] = value.requires_grad
            seen[f"strides of {name}"] = "contiguous" if value.is_contiguous() else value.stride()
            seen[f"memory of {name}"] = sorted(
                n
                for n, t in tensors.items()
                if n != name and t.numel() and t.data_ptr() == value.data_ptr()
            )
    return seen


def copied(value: Any) -> Any:  # noqa: ANN401
    """Return the same of tensors that are no leaves."""
    if type(value) in {list, tuple}:
        return type(value)(map(copied, value))
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def observe(  # noqa: PLR0913
    call: Any,  # noqa: ANN401
    made: Any,  # noqa: ANN401
    arguments: dict[str, Any],
    how: tuple[str, ...] = ("none",),
    *,
    seed: int = 0,
    steps: int = 0,
    module: Any = None,  # noqa: ANN401
    earlier: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return everything that a call gives back, changes and propagates, by name.

    ``how`` says whether arguments take gradients, themselves or through a copy, and which do not;
    ``earlier`` are the arguments of a call that comes first.
    """
    weights = dict(made.named_parameters()) if isinstance(made, torch.nn.Module) else {}
    gradients, *constants = how
    roots = {k: v for key, value in arguments.items() for k, v in leaves(value, key).items()}
    if gradients != "none":
        for name, root in roots.items():
            if isinstance(root, torch.Tensor) and root.is_floating_point():
                root.requires_grad_(name not in constants)
    passed = arguments
    if gradients == "copy":
        copies = {id(v): copied(v) for v in arguments.values()}
        passed = {k: copies[id(v)] for k, v in arguments.items()}
    if earlier is not None:
        seed_everything(seed)
        with contextlib.suppress(Exception):  # it may fail on purpose
            call(earlier)
    around = surroundings_of(module)
    inside = {**state_of(made), **modules_in(passed)}
    held = {n: v.data_ptr() for n, v in inside.items() if isinstance(v, torch.Tensor)}
    seed_everything(seed)
    before = torch.get_rng_state()
    with torch.set_grad_enabled(gradients != "none"):
        around |= {k: v for k, v in surroundings_of(None).items() if k in around}
        try:
            value = call(passed)
            results = leaves(taken_apart(value), "result")
        except Exception as error:  # noqa: BLE001
            return {"the call raises": f"{type(error).__name__}: {error}"}
        left = surroundings_of(module)
    torch.set_grad_enabled(True)
    seen = {f"{n} after the call": v for n, v in left.items() if differs(around.get(n), v, 0)}
    seen["random numbers of torch"] = not torch.equal(before, torch.get_rng_state())
    seen |= results | describe_results(made, passed, results, held) | other_names(value, passed)
    if gradients != "none":
        every = {**state_of(made), **roots}
        seen |= propagate(results, every, second="second" in constants)
    if steps:
        seen |= train(call, passed, weights, steps)
    return seen


def train(
    call: Any,  # noqa: ANN401
    passed: dict[str, Any],
    weights: dict[str, Any],
    steps: int,
) -> dict[str, Any]:
    """Return what further calls give back, each followed by a step of gradient descent."""
    seen: dict[str, Any] = {}
    for step in range(1, steps + 1):
        value = call(passed)
        parts: dict[str, Any] = {"": value}
        if not isinstance(value, torch.Tensor):
            inner = value.values() if isinstance(value, dict) else value
            inner = inner if not hasattr(value, "__dict__") else vars(value).values()
            parts = {f"[{i}]": part for i, part in enumerate(inner)}
        results = {
            f"result in step {step}{name}": part
            for name, part in parts.items()
            if isinstance(part, torch.Tensor) and part.requires_grad
        }
        seen |= results
        found = propagate(results, weights)
        gradients = [g for g in found.values() if isinstance(g, torch.Tensor) and g.numel()]
        largest = max((float(g.abs().max()) for g in gradients), default=0.0)
        if not 0.0 < largest < float("inf"):
            continue
        with torch.no_grad():
            for name, weight in weights.items():
                gradient = found.get(f"gradient of {name}")
                if gradient is not None:
                    weight.sub_(gradient / (16 * largest))
    return seen | {f"self.{name} after {steps} steps": w for name, w in weights.items()}


def propagate(
    results: dict[str, Any], inputs: dict[str, Any], *, second: bool = False
) -> dict[str, Any]:
    """Return the gradients of a fixed loss over all results, and those of the gradients."""
    wanted = {n: v for n, v in inputs.items() if isinstance(v, torch.Tensor) and v.requires_grad}
    loss = torch.zeros((), dtype=torch.float64)
    for name, value in results.items():
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point():
            weights = torch.randint(-8, 9, value.shape, generator=generator(name)) / 8
            loss = loss + (value * weights.to(value.dtype)).sum().double()
    found: Any = [None] * len(wanted)
    if loss.requires_grad and wanted:
        try:
            found = torch.autograd.grad(
                loss, list(wanted.values()), allow_unused=True, create_graph=second
            )
        except Exception as error:  # noqa: BLE001
            return {"the call raises": f"in backward, {type(error).__name__}: {error}"}
    seen: dict[str, Any] = {}
    for name, gradient in zip(wanted, found, strict=True):
        dense = gradient is None or gradient.layout == torch.strided
        seen[f"gradient of {name}"] = gradient if dense else gradient.to_dense()
        if not dense:
            seen[f"layout of the gradient of {name}"] = str(gradient.layout)
    if second:
        further = propagate({n: g for n, g in seen.items() if g is not None}, inputs)
        for name, value in further.items():
            flows = isinstance(value, torch.Tensor) and bool(value.count_nonzero())
            shown = name.replace("gradient of ", "gradient of the gradients by ", 1)
            seen[shown] = value if flows else None
    return seen


def differs(left: Any, right: Any, least: float) -> bool:  # noqa: ANN401
    """Say whether two values are different, numbers by more than ``least``."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        kinds = type(left), type(right)
        # of these no object is equal to another one
        if all(kind.__eq__ is object.__eq__ for kind in kinds):  # type: ignore[comparison-overlap] # mypy asks what it takes
            return kinds[0].__qualname__ != kinds[1].__qualname__
        return kinds[0] is not kinds[1] or left != right
    if left.shape != right.shape or left.dtype != right.dtype:
        return True
    if not left.is_floating_point():
        return not torch.equal(left, right)
    a, b = left.detach().double(), right.detach().double()
    same = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= least)
    return not bool(same.all())


def raises_alike(original: dict[str, Any], changed: dict[str, Any]) -> bool:
    """Say whether both raise, and the same kind of exception."""
    kinds = [str(s.get("the call raises", "")).partition(":")[0] for s in (original, changed)]
    return bool(kinds[0]) and kinds[0] == kinds[1]


def print_largest(left: Any, right: Any) -> None:  # noqa: ANN401
    """Print by how much two tensors of numbers differ."""
    both = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
    if both and left.shape == right.shape and left.numel():
        off = (left.detach().double() - right.detach().double()).abs().max().item()
        print(f"  they differ by up to {off:.3g}")  # noqa: T201


def show(original: dict[str, Any], changed: dict[str, Any], what: str, least: float) -> int:
    """Print what differs; return 1 if something does."""
    raises = "the call raises" in changed or "the call raises" in original
    first = "the call raises" if raises else what
    every = [] if raises_alike(original, changed) else [*{**original, **changed}]
    found = [n for n in every if differs(original.get(n), changed.get(n), least)]
    names = [first] if first in found else found
    for name in names:
        print(name)  # noqa: T201
        for version, seen in (("original", original), ("changed", changed)):
            value = seen.get(name, "nothing of the kind")
            if isinstance(value, torch.Tensor):
                value = f"{value.dtype} {list(value.shape)}\n{value.detach()}"
            print(f"  {version + ':':<10}{value}")  # noqa: T201
        print_largest(original.get(name), changed.get(name))
    if not names:
        print("The two agree here.")  # noqa: T201
    return int(bool(names))
