"""What training loops are given: batches, models that return what is read, losses, schedules.

``train_one_epoch(model, criterion, loader, optimizer, device)`` is called with a loader of five
batches, the last of which is smaller, and a model that computes something of all it gets.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from npufix.rewriters.verification.calls.values import (
    CLASSES,
    Batches,
    Held,
    MadeArgument,
    Spec,
    Value,
    seed_generator,
)
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    Parameter,
    guess_attribute,
)
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from npufix.rewriters.verification.inputs.source.training.loops import Batch, Item, Result
    from npufix.rewriters.verification.inputs.source.usage import Use

Task: TypeAlias = Literal["rows", "positions", "like"]
"""What a model is for: a class for each row, for each position, or something like its input."""
Sample: TypeAlias = Literal["sequences", "numbers", "labels", "lists"]
"""What a data set holds: sequences as tensors or lists; images, whose label is a number or not."""
_SAMPLES: tuple[Sample, ...] = ("sequences", "numbers", "labels", "lists")
_OF_TENSORS: tuple[Sample, ...] = ("sequences", "labels")
_HOLDS_TENSORS = r"(?i)(dict|mapping)\[ *str *, *(torch\.)?Tensor *\]"
_LENGTHS = (4, 6, 3)
TASKS: tuple[Task, ...] = ("rows", "positions", "like")
MODEL = "(^|_)(model|net|network|module)$"
_VOCABULARY = 11
_GUESS_S = 1.0
_ROWS = 3
_LAST = 2
"""Rows of the last batch: a mean of means is not the mean of all."""
_STEEP_CALL, _STEEP = 2, 128.0
"""In the second batch gradients are so much larger: beyond what they are clipped to."""
_FAINT = 2.0**-14
"""Of a loss whose gradients are below all that they are clipped to."""
_SIDE = 6
_LENGTH = 5
_COUNTS = (5, 12, 1)
"""Batches of a loader; 12 are more than the usual steps between two lines of a log."""
_LABELS = r"label|target|^y$|^ys$|^gt|class|truth|annot"
_MASK = "(?i)mask"
_TOKENS = r"(^|_)ids?$|token|^src$|^tgt$"
_IMAGES = r"im(a)?ge?s?($|_)|pixel|frame|video|^x$|^xs$|inputs?$"
_LOADED = r"loader|dataset|iterator|batches|(^|_)dl$|(^|_)data$"
_ONE = r"batch|(^|_)data$|samples?$"
DICTIONARIES = r"(?i)\b(list|sequence|iterable|tuple)\[ *(typing\.)?(dict|mapping)\b"
"""An annotation of several samples."""
_SEVERAL = r"batch|samples|examples|features|instances|items|records|(^|_)data(_list)?$"
_LOSS = r"criterion|(^|_)crit$|(^|_)loss(_?(fn|func|fct|function|module))?$"
_SCALED = r"scaler$"
_SCHEDULED = r"sched(uler)?$|^lr_sched"
_LOGGED = r"(^|_)(logger|writer|tb_writer|tracker)$"
_IS_LOSS = r"loss|nll|kl"
_LOSSES = ("CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss")


def list_batches(
    kind: str, items: str, task: Task, count: int, *, small_last: bool = True
) -> Batches:
    """Return batches of parts that ``items`` names: ``images labels:list``.

    ``kind`` is that of a ``Batch``; the last one has fewer rows.
    """
    parts = [part.partition(":")[::2] for part in items.split()]
    rows = [_ROWS] * (count - 1) + [_LAST if small_last and count > 1 else _ROWS]
    made = Batches(_make_batch(kind, parts, task, n, rows=r) for n, r in enumerate(rows))
    made.rows = sum(rows)
    return made


def list_samples(kind: str, items: str, task: Sample, count: int) -> list[object]:
    """Return what a data set holds: sequences of several lengths, or images with a label each."""
    parts = [part.partition(":")[0] for part in items.split()]
    return [
        _hold(kind, {name: _make_of_sample(name, task, number) for name in parts})
        for number in range(count)
    ]


def _make_of_sample(name: str, task: Sample, number: int) -> object:
    lower, source = name.lower(), seed_generator(name, number)
    labels = re.search(_LABELS, lower) is not None
    if task in {"sequences", "lists"}:
        length = _LENGTHS[number % len(_LENGTHS)]
        if "mask" in lower:
            made = torch.ones(length, dtype=torch.long)
        elif labels or re.search(_TOKENS, lower):
            made = torch.randint(0, _VOCABULARY, (length,), generator=source)
        else:
            made = _draw(length, WIDTH, seed=(name, number))
        return made.tolist() if task == "lists" else made
    if labels:
        label = torch.randint(0, CLASSES, (), generator=source)
        return int(label) if task == "numbers" else label
    wide = (3, _SIDE, _SIDE) if re.search(_IMAGES, lower) else (WIDTH,)
    return _draw(*wide, seed=(name, number))


def one_batch(kind: str, items: str, task: Task) -> object:
    """Return one batch."""
    return list_batches(kind, items, task, 1)[0]


def _make_batch(
    kind: str, parts: list[tuple[str, str]], task: Task, number: int, *, rows: int
) -> object:
    of_text = any(re.search(_TOKENS, name.lower()) for name, _ in parts)
    made = {
        # beside images a mask is what is to be found: ``for image, mask in loader``
        name: _make_part(
            name if of_text else re.sub(_MASK, "label", name), inner, task, number, rows, at
        )
        for at, (name, inner) in enumerate(parts)
    }
    return _hold(kind, made)


def _hold(kind: str, made: dict[str, object]) -> object:
    if kind == "tuple":
        return tuple(made.values())
    if kind == "alone":
        return next(iter(made.values()))
    return Held(made) if kind == "object" else made


def _make_part(  # noqa: PLR0913, PLR0917 - what a part of a batch is
    name: str, inner: str, task: Task, number: int, rows: int, at: int
) -> object:
    if inner == "list":
        return [_make_part(name, "", task, rows * number + n, 1, at)[0] for n in range(rows)]  # type: ignore[index] # a tensor
    if inner == "records":
        boxes = [_draw(rows, 4, seed=("boxes", number, n)).abs().cumsum(-1) for n in range(rows)]
        return [{"boxes": b, "labels": torch.arange(len(b)) % CLASSES} for b in boxes]
    lower = name.lower()
    if "mask" in lower:
        lengths = torch.arange(rows)[:, None] % _LENGTH
        return (torch.arange(_LENGTH)[None] <= _LENGTH - 1 - lengths).long()
    source = seed_generator(name, number)
    language = re.search(_TOKENS, lower)
    labels = re.search(_LABELS, lower) and not language
    if language or (labels and task == "positions"):
        shape = (rows, _LENGTH) if language else (rows, _SIDE, _SIDE)
        drawn = torch.randint(0, CLASSES if labels else _VOCABULARY, shape, generator=source)
        return _ignore(drawn, inner)
    if labels and task == "rows":
        return _ignore(torch.randint(0, CLASSES, (rows,), generator=source), inner)
    wide = (3, _SIDE, _SIDE) if re.search(_IMAGES, lower) and task != "like" else (WIDTH,)
    return _draw(rows, *wide, seed=(name, number))


def _ignore(labels: torch.Tensor, number: str) -> torch.Tensor:
    """Return labels of which some are the number, if it is one, that stands for none."""
    if re.fullmatch(r"-?\d+", number):
        labels.view(-1)[::3] = int(number)
    return labels


def _draw(*shape: int, seed: Hashable) -> torch.Tensor:
    return _draw_once(shape, seed, torch.get_default_dtype()).clone()


@lru_cache(maxsize=256)
def _draw_once(shape: tuple[int, ...], seed: Hashable, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers that every loop over the same batches draws again."""
    return torch.randn(shape, generator=seed_generator(seed), dtype=dtype)


class TrainedModel(torch.nn.Module):
    """A model that returns what a loop reads, computed of everything that it is given.

    In training it has other results than in evaluation, and keeps a mean, as norms do.
    """

    running_mean: torch.Tensor

    def __init__(  # noqa: PLR0913 - all that a loop may ask
        self,
        kind: str,
        names: str,
        task: Task,
        seed: int,
        *,
        mode: bool,
        sizes: str = "",
        frozen: bool = False,
    ) -> None:
        """``kind`` and ``names`` are those of a ``Result``; in training, with ``mode``.

        ``sizes`` are attributes that code reads: ``net.max_seq_len``; ``frozen``: its bias is.
        """
        super().__init__()
        for name in sizes.split():
            setattr(self, name, guess_attribute(name))
        self.train(mode)
        self._kind, self._names, self._task = kind, tuple(names.split()), task
        drawn = _draw(3, WIDTH, seed=("model", seed))
        self.weight = torch.nn.Parameter(drawn[0])
        self.bias = torch.nn.Parameter(drawn[1], requires_grad=not frozen)
        self.register_buffer("running_mean", drawn[2].clone())
        self._calls = 0

    def no_sync(self) -> nullcontext[None]:
        """Do as a wrapper for several devices does."""
        return nullcontext()

    def forward(self, *given: object, **named: object) -> Any:  # noqa: ANN401 - what a loop reads
        """Compute of all tensors, and return it in the form that is read."""
        tensors = [t for t in _list_leaves([given, named]) if isinstance(t, torch.Tensor)]
        first = next((t for t in tensors if t.dim()), torch.zeros(_ROWS, WIDTH))
        rows = len(first)
        features = self.weight.new_zeros(rows, WIDTH)
        ramp = torch.linspace(0.5, 1.5, WIDTH, dtype=self.weight.dtype)
        for number, tensor in enumerate(tensors):
            own = tensor.detach() if not tensor.is_floating_point() else tensor
            flat = own.reshape(len(own) or 1, -1) if own.dim() else own.reshape(1, 1)
            # of many floats the mean says little, and no two rows were of different classes
            spread = max(flat.shape[1], 1) ** 0.5 if tensor.is_floating_point() else 1
            mean = spread * flat.to(self.weight.dtype).mean(1, keepdim=True)
            mean = mean if len(mean) == rows else mean.mean().expand(rows, 1)
            features = features + torch.tanh(mean * ramp + number)
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(features.mean(0).to(self.running_mean), 0.25)
        else:
            features = features - self.running_mean
        scores = features * self.weight + self.bias
        self._calls += self.training
        if self.training and self._calls == _STEEP_CALL and scores.requires_grad:
            scores.register_hook(lambda grad: grad * _STEEP)  # type: ignore[no-untyped-call] # torch does not annotate it
        return self._as_read(scores, first)

    def _as_read(self, scores: torch.Tensor, first: torch.Tensor) -> object:
        if self._kind == "scalar":
            return scores.square().mean()
        if self._kind == "losses":
            return {"loss_class": scores.square().mean(), "loss_box": scores.abs().mean()}
        if self._kind == "tensor":
            return self._for_task(scores, first)
        made = {
            name: scores.square().mean()
            if re.search(_IS_LOSS, name.lower())
            else self._for_task(scores + number, first)
            for number, name in enumerate(self._names)
        }
        if self._kind == "tuple":
            return tuple(made.values())
        return Held(made) if self._kind == "object" else made

    def _for_task(self, scores: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        classes = scores[:, :CLASSES]
        if self._task == "rows" or first.dim() < 2:  # noqa: PLR2004 - rows of something
            return classes
        if self._task == "like" and first.is_floating_point():
            spread = scores.mean(1).reshape(-1, *(1,) * (first.dim() - 1))
            return first.to(scores.dtype) * self.weight.mean() + spread
        if not first.is_floating_point():
            # as many as there are tokens: a tenth of them, which sampling keeps, is one
            words = torch.cat((scores, scores.flip(1) / 2), 1)[:, None, :_VOCABULARY]
            steps = torch.arange(first.shape[1], dtype=scores.dtype) / 4
            return words + torch.tanh(steps[None, :, None] * words)
        shape = (*classes.shape, *first.shape[2:])
        return classes.reshape(*classes.shape, *(1,) * (first.dim() - 2)).expand(shape).contiguous()


def _list_leaves(value: object) -> Iterator[object]:
    """Yield what tuples, lists and dictionaries hold, however deep."""
    held = list(value.values()) if isinstance(value, dict) else value
    if isinstance(held, tuple | list):
        for one in held:
            yield from _list_leaves(one)
    else:
        yield held


class LossOfWeights:
    """A loss computed before the call, of the weights that an optimiser beside it trains."""

    def compute(self, weights: Sequence[torch.Tensor], number: int = 0) -> torch.Tensor:
        """Return it; alone, a number that takes a gradient.

        Every other one has gradients below what they are clipped to.
        """
        trained = [w for w in weights if w.requires_grad]
        if not trained:
            return torch.tensor(0.75, requires_grad=True)
        size = _FAINT if number % 2 else 1.0
        return torch.stack([(w - 0.5).square().sum() * size for w in trained]).sum()


class Closure:
    """What computes the loss of the weights anew, and its gradients: ``optimizer.step(closure)``.

    An optimiser that computes them itself may go through the loss again.
    """

    def __init__(self) -> None:
        """Know no weights before the step."""
        self.weights: Sequence[torch.Tensor] = ()

    def __call__(self) -> torch.Tensor:
        """Return the loss."""
        for weight in self.weights:
            weight.grad = None
        with torch.enable_grad():
            found = LossOfWeights().compute(self.weights)
            found.backward(retain_graph=True)  # type: ignore[no-untyped-call] # of torch
        return found


class Schedule:
    """What changes the learning rate of the optimiser beside it, with every step."""

    optimizer: torch.optim.Optimizer | None = None

    def __init__(self) -> None:
        """Start with no step."""
        self.last_epoch = 0

    def step(self, *_given: object, **_named: object) -> None:
        """Lower the learning rate."""
        self.last_epoch += 1
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            group["lr"] *= 0.75

    def get_last_lr(self) -> list[float]:
        """Return the learning rates."""
        held = self.optimizer
        return [0.125] if held is None else [group["lr"] for group in held.param_groups]


class Log:
    """What takes down the numbers that it is told, whatever the method is called."""

    def __init__(self) -> None:
        """Start with none."""
        self.told: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of any logger
        """Return what takes them down."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._take

    def _take(self, *given: object, **named: object) -> None:
        told = _list_leaves([given, named])
        numbers = [n for n in told if isinstance(n, int | float | torch.Tensor)]
        self.told += [torch.as_tensor(n).detach().double().mean() for n in numbers]


def scaler() -> torch.amp.GradScaler:
    """Return what scales losses, by a power of two that halves can hold."""
    return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)


def bind_schedules(arguments: Mapping[str, object]) -> None:
    """Have the schedules among arguments change the optimiser among them."""
    found = [v for v in arguments.values() if isinstance(v, torch.optim.Optimizer)]
    for value in arguments.values():
        if isinstance(value, Schedule) and found:
            value.optimizer = found[0]


def _offer(function: str, label: str, *given: object, **named: object) -> MadeArgument:
    own = f"__import__({__name__!r}, fromlist=[''])"
    text = ", ".join([*map(repr, given), *(f"{n}={v!r}" for n, v in named.items())])
    code = f"{own}.{function}({text})"
    return MadeArgument(lambda: globals()[function](*given, **named), label, code)


def _spell(items: tuple[Item, ...]) -> str:
    """Return names and kinds, or the number that stands for none: ``images:tensor labels:-100``."""
    plain = {one for one in items if one.kind != "tensor" or one.ignored is None}
    return " ".join(f"{one.name}:{one.kind if one in plain else one.ignored}" for one in items)


def offer_for_loops(parameter: Parameter, use: Use) -> list[Spec]:
    """Return what a training loop may be given for a parameter; empty if it is no part of one."""
    made = _offer_beside(parameter.name.lower(), use)
    if parameter.has_default:
        return [Value(parameter.default, given=False), *made] if made else []
    return made or [*_offer_parts(parameter, use)]


def _offer_beside(name: str, use: Use) -> list[Spec]:
    """Return what stands beside the model of a loop, and may be left out."""
    if re.search(_SCALED, name):
        return [_offer("scaler", "a GradScaler")]
    if re.search(_SCHEDULED, name) and "step" in use.attributes:
        return [_offer("Schedule", "a schedule of the learning rate")]
    return [_offer("Log", "a log")] if re.search(_LOGGED, name) else []


def _offer_parts(parameter: Parameter, use: Use) -> Iterator[Spec]:
    """Yield batches, losses and models."""
    name, batches = parameter.name.lower(), use.batches
    loaded = re.search(_LOADED, name) is not None or "DataLoader" in parameter.annotation
    if batches is not None and loaded:
        yield from _offer_batches(batches)
    elif batches is not None and batches.kind != "alone" and _is_several(parameter):
        held = re.search(_HOLDS_TENSORS, parameter.annotation)
        yield from _offer_samples(batches, _SAMPLES if held is None else _OF_TENSORS)
    elif use.batch is not None and re.search(_ONE, name):
        yield from _offer_batch(use.batch)
    elif use.derived and re.search(_IS_LOSS, name):
        yield _offer("LossOfWeights", "a loss of the weights")
    elif use.called and use.given != 1 and re.search(_LOSS, name):  # of results and labels
        yield from (_offer("loss", f"an nn.{kind}", kind) for kind in _LOSSES)
    elif use.gives is not None and _is_trained(name, use):
        # what calls ``train`` may find it in evaluation
        sizes = " ".join(_list_sizes(use))
        given = {"mode": "train" not in use.attributes} | ({"sizes": sizes} if sizes else {})
        yield from _offer_models(use.gives, name, given, freezes="parameters" in use.attributes)


def _is_several(parameter: Parameter) -> bool:
    listed = re.search(DICTIONARIES, parameter.annotation) is not None
    return listed or re.search(_SEVERAL, parameter.name.lower()) is not None


def offer_closure() -> Spec:
    """Return what an optimiser calls for a loss."""
    return _offer(Closure.__name__, "a closure")


def loss(kind: str) -> torch.nn.Module:
    """Return a loss of ``torch.nn``."""
    made: torch.nn.Module = getattr(torch.nn, kind)()
    return made


def _is_trained(name: str, use: Use) -> bool:
    """Say whether what is called is a model of which more is read than a tensor, or that trains."""
    as_model = use.attributes & {"train", "eval", "zero_grad", "no_sync", "parameters"}
    special = use.gives is not None and use.gives.kind not in {"tensor", "tuple"}
    special |= bool(_list_sizes(use))
    return bool(as_model) or (special and re.search(MODEL, name) is not None)


def _list_sizes(use: Use) -> list[str]:
    """Return what code reads of a model that modules do not have, and whose name says a number."""
    own = (name for name in sorted(use.attributes) if not hasattr(torch.nn.Module, name))
    return [n for n in own if not try_call(lambda n=n: guess_attribute(n), _GUESS_S).error]  # type: ignore[misc] # a default binds it


def _offer_batches(form: Batch) -> Iterator[Spec]:
    items = _spell(form.items)
    for count in _COUNTS:
        for task in TASKS:
            label = f"{count} batches with {', '.join(i.name for i in form.items)} ({task})"
            yield _offer("list_batches", label, form.kind, items, task, count)


def _offer_samples(form: Batch, tasks: Sequence[Sample]) -> Iterator[Spec]:
    items = _spell(form.items)
    for count in (3, 1):
        for task in tasks:
            label = f"{count} samples with {', '.join(i.name for i in form.items)} ({task})"
            yield _offer("list_samples", label, form.kind, items, task, count)


def _offer_batch(form: Batch) -> Iterator[Spec]:
    for task in TASKS:
        label = f"a batch with {', '.join(i.name for i in form.items)} ({task})"
        yield _offer("one_batch", label, form.kind, _spell(form.items), task)


def _offer_models(
    form: Result, name: str, given: Mapping[str, object], *, freezes: bool
) -> Iterator[Spec]:
    """Yield models; all but the first are partly frozen, for what goes through the weights."""
    seed = sum(map(ord, name))
    read = f"{form.kind} of {', '.join(form.names)}" if form.names else form.kind
    for task in TASKS:
        label = f"a model that returns a {read} ({task})"
        names = " ".join(form.names)
        frozen = {"frozen": True} if freezes and task != TASKS[0] else {}
        yield _offer("TrainedModel", label, form.kind, names, task, seed, **given, **frozen)
    if form.kind == "tuple":  # ``model(x)[0]`` of a tensor
        yield _offer("TrainedModel", "a model", "tensor", "", "rows", seed, **given)
