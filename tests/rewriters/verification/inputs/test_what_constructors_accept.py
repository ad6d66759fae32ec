"""Texts that ``__init__`` accepts, what it passes on, and classes that are looked up by name."""

from __future__ import annotations

import abc
import ast
import inspect
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from tests.rewriters.verification.changed_programs import verdict

from npufix.rewriters.graph.modules.syntax import parse_once
from npufix.rewriters.verification.calls.values import Tensor, Value, find_nothing
from npufix.rewriters.verification.inputs.base_shapes import collect_base_shapes, tell_of_object
from npufix.rewriters.verification.inputs.load import Loaded, load
from npufix.rewriters.verification.inputs.objects.incomplete.unmade import make_concrete
from npufix.rewriters.verification.inputs.objects.kept import list_told, makes_layer
from npufix.rewriters.verification.inputs.objects.layer_classes import list_sought
from npufix.rewriters.verification.inputs.objects.ranks import combine_by_rank, vary_one
from npufix.rewriters.verification.inputs.objects.training_loops import Closure
from npufix.rewriters.verification.inputs.objects.weights import take_steps
from npufix.rewriters.verification.inputs.recipes import Recipe, generate_recipes
from npufix.rewriters.verification.inputs.search_result import SearchResult
from npufix.rewriters.verification.inputs.settings import offer_settings
from npufix.rewriters.verification.inputs.source.declarations import Declarations
from npufix.rewriters.verification.inputs.source.parameters import list_parameters
from npufix.rewriters.verification.inputs.source.several import guess_several
from npufix.rewriters.verification.inputs.source.usage import Use, find_function
from npufix.rewriters.verification.inputs.target import Target
from npufix.rewriters.verification.inputs.tracing import list_late

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODES = """
BINARY = "binary"
MANY = "many"


class Focal(torch.nn.Module):
    def __init__(self, mode: str, gamma=2.0):
        assert mode in {BINARY, MANY}
        super().__init__()
        self.mode, self.gamma = mode, gamma

    def forward(self, x, y):
        if self.mode in {BINARY, MANY}:
            loss = F.binary_cross_entropy_with_logits(x, y.type_as(x), reduction="none")
            loss = (1 - torch.exp(-loss)) ** self.gamma * loss
        return loss.mean()
"""
BY_NAME = """
class GlobalNorm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * self.gamma


gLN = GlobalNorm


def get(identifier):
    found = globals().get(identifier)
    if found is None:
        raise ValueError(identifier)
    return found


class Block(torch.nn.Module):
    def __init__(self, dim, norm="gLN"):
        super().__init__()
        self.norm = get(norm)(dim)

    def forward(self, x):
        return self.norm(x) * 2
"""
PASSED_ON = """
class Codebook(torch.nn.Module):
    def __init__(self, dim, codebook_size, decay=0.9):
        super().__init__()
        self.codes = torch.nn.Embedding(codebook_size, dim)


class Residual(torch.nn.Module):
    def __init__(self, *, num_quantizers, **kwargs):
        super().__init__()
        self.layers = torch.nn.ModuleList([Codebook(**kwargs) for _ in range(num_quantizers)])

    def decode(self, indices: torch.Tensor) -> torch.Tensor:
        out = torch.zeros((), device=indices.device)
        for layer, each in zip(self.layers, indices):
            out = out + layer.codes(each)
        return out
"""

WRAPPED = """
def evaluated(function):
    def inner(model, *args, **kwargs):
        model.eval()
        return function(model, *args, **kwargs)

    return inner


class Sampler(torch.nn.Module):
    def __init__(self, net, pad_value=0):
        super().__init__()
        self.net, self.pad_value, self.max_seq_len = net, pad_value, net.max_seq_len

    @torch.no_grad()
    @evaluated
    def generate(self, start_tokens, steps, thres=0.9):
        b, n, device = *start_tokens.shape, start_tokens.device
        out = start_tokens
        for _ in range(min(steps, 2)):
            scores = self.net(out[:, -self.max_seq_len :])[:, -1]
            best = scores.topk(int((1 - thres) * scores.shape[-1]), dim=-1)
            out = torch.cat((out, best.indices[:, :1]), dim=-1)
        return out[:, n:]
"""
INHERITED = '''
class Attack:
    """Change images.

    Args:
        model (nn.Module): is attacked.
        eps (float): how far.
        border (tuple): around images. Default: (1, 2, 3, 4).

    Shape:
        - images: (N, C, H, W)

    """

    def __init__(self, name, model):
        self.name, self.model = name, model
        self.device = next(model.parameters()).device

    def scores(self, images):
        return self.model(images)


class Sign(Attack):
    def __init__(self, model, eps=0.1, steps=2):
        super().__init__("sign", model)
        self.eps, self.steps = eps, steps

    def forward(self, images, labels):
        images = images.clone().detach().to(self.device)
        for _ in range(self.steps):
            images.requires_grad = True
            cost = F.cross_entropy(self.scores(images), labels)
            grad = torch.autograd.grad(cost, images)[0]
            grad = grad / grad.abs().mean(dim=(1, 2, 3), keepdim=True)
            images = (images + self.eps * grad).detach()
        return images
'''
TOGETHER = """
class Compressed(torch.nn.Module):
    def __init__(self, dim: int, dropout: float, tokens: int | None, how: str | None, frames):
        if (tokens is None) != (how is None) or frames % 2 == 0:
            raise ValueError("both or neither, and a middle")
        super().__init__()
        self.dropout = torch.nn.Dropout(dropout) if dropout else None
        self.scale = torch.nn.Parameter(torch.ones(dim))
        self.narrow = tokens and torch.nn.Linear(tokens, tokens if how == "all" else 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.narrow is not None:
            x = self.narrow(x.transpose(1, 2)).transpose(1, 2)
        return self.dropout(x * self.scale)
"""


@pytest.mark.parametrize(
    ("text", "old", "right", "wrong", "made"),
    [
        (MODES, "* loss\n", "* 1.0 * loss\n", "* loss * 2\n", "mode='binary'"),
        (BY_NAME, "* 2", "* 2.0", "* 3", "dim="),
        (WRAPPED, "[:, :1]", "[:, 0:1]", "[:, -1:] + 1", "net=a model"),
        (INHERITED, "images + self.eps * grad", "self.eps * grad + images", "images", "model="),
        (TOGETHER, "x * self.scale", "self.scale * x", "x + self.scale", "dropout=0.1"),
        (PASSED_ON, "out + layer.codes(each)", "layer.codes(each) + out", "out", "codebook_size="),
    ],
)
def test_the_object_is_made(text: str, old: str, right: str, wrong: str, made: str) -> None:
    kept = verdict(text, (old, right))
    assert kept.status.value == "equivalent", kept.reason
    refuted = verdict(text, (old, wrong))
    assert refuted.status.value == "refuted", refuted.reason
    assert made in refuted.reason


def test_an_optimizer_that_cannot_be_made_is_no_internal_error() -> None:
    text = """
    class Descent(torch.optim.Optimizer):
        def __init__(self, params, lr=0.1):
            import missing_sharding
            super().__init__(params, {"lr": lr})

        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.data.add_(p.grad, alpha=-group["lr"])
    """
    found = verdict(text, ("p.data.add_(p.grad, alpha=-group", "p.data.sub_(p.grad, alpha=group"))
    assert found.status.value == "not verified"
    assert "missing_sharding" in found.reason


def test_equal_sizes_are_set_apart_and_unlikely_ones_come_last() -> None:
    sizes = [Value(8), Value(16), Value(4), Value(3), Value(5)]
    options = [[("height", None), *(("height", s) for s in sizes)]]
    options += [[("width", None), *(("width", s) for s in sizes)], [("count", Value(2))]]
    first, second, *_ = combine_by_rank(options, other_first=False)
    assert [str(spec) for _, spec in first] == ["None", "None", "2"]
    assert [str(spec) for _, spec in second] == ["8", "16", "2"]
    assert [[str(s) for _, s in one] for one in vary_one(options)] == [
        *(["3", "None", "2"], ["5", "None", "2"]),
        *(["None", "3", "2"], ["None", "5", "2"]),
    ]


def test_what_else_is_no_default_is_tried_without_a_tensor() -> None:
    options = [[("weight", None), ("weight", Tensor((2, 3)))], [("eps", None), ("eps", Value(0.5))]]
    tried = [[str(s) for _, s in one] for one in combine_by_rank(options, other_first=False)]
    assert tried.index(["float[2, 3]", "0.5"]) < tried.index(["None", "0.5"]) <= 5


def test_a_class_that_leaves_methods_to_others_is_made() -> None:
    class Base(abc.ABC):
        def __init__(self) -> None:
            self.count = 2

        @abc.abstractmethod
        def act(self) -> int: ...

    assert make_concrete(Base)().count == 2
    assert make_concrete(int) is int


def test_images_are_as_large_as_a_layer_asks_that_takes_them_whole() -> None:
    conv = torch.nn.Conv2d(1, 4, 3)
    whole = torch.nn.Sequential(conv, torch.nn.Flatten(), torch.nn.Linear(4 * 26 * 26, 2))
    pooled = torch.nn.Sequential(conv, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Linear(4, 2))
    assert (2, 1, 28, 28) in collect_base_shapes((), [], (), whole)
    assert (2, 1, 28, 28) not in collect_base_shapes((), [], (), pooled)


def test_an_optimizer_that_computes_gradients_itself_is_given_what_makes_them() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer, closure = torch.optim.SGD([weight], lr=0.25), Closure()

    def step(made: torch.optim.Optimizer, again: Closure) -> None:
        made.zero_grad()
        again().backward()  # a second time: what calls it may have done so
        made.step()

    take_steps(step, optimizer, closure)
    assert weight.tolist() == [0.5, 0.5]


class Made(torch.nn.Module):
    """An object that is made with what makes a part, and with which results to take."""

    def __init__(self, features_network: Callable[..., Any], classes: Any = None) -> None:
        super().__init__()
        self.features = features_network(3, width=4)
        self.classes = classes

    def forward(self, x: torch.Tensor) -> Any:
        return self.features(x)[..., self.classes]


def test_what_makes_a_part_and_what_says_which_are_told_by_their_use() -> None:
    network, classes = list_parameters(inspect.signature(Made))
    assert [n for n in ("features_network", "classes") if makes_layer(Made, n)] == [network.name]
    found = list_told(Made, replace(classes, annotation=""), find_nothing)
    assert [str(s) for s in found] == ["[0]", "[1, 0]"]


def test_what_collects_sizes_is_given_numbers() -> None:
    def measured(*dims): ...  # type: ignore[no-untyped-def] # noqa: ANN002, ANN202 - as users write

    def joined(*features): ...  # type: ignore[no-untyped-def] # noqa: ANN002, ANN202 - as users write

    (sizes,) = list_parameters(inspect.signature(measured), spread=True)
    assert Value((3, 5)) in guess_several(sizes, Use())
    (others,) = list_parameters(inspect.signature(joined), spread=True)
    assert others.annotation == "tuple[Tensor, ...]"


class _Choice(torch.distributions.Categorical):
    def score(self, value: torch.Tensor) -> torch.Tensor:
        return self.log_prob(value)


class _Layer(torch.nn.Module):
    def __init__(
        self, attention: torch.nn.Module, norm_layer: Callable[..., torch.nn.Module]
    ) -> None:
        super().__init__()
        self.attention = attention
        self.norm = norm_layer()

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        out, weights, _ = self.attention(query=x, mask=mask)
        return self.norm(out) + weights


@pytest.mark.parametrize(
    ("owner", "method", "told"),
    [
        (_Choice, "score", "logits="),  # one of two, and not both
        (_Layer, "forward", "attention=a stand-in layer with 3 results"),
    ],
)
def test_objects_are_made_as_their_methods_need_them(owner: type, method: str, told: str) -> None:
    first = next(generate_recipes(owner, method, Loaded({}, "")))
    assert told in str(first)
    made = first.build(owner)
    if isinstance(made, _Layer):
        assert made(torch.ones(2, 3)).shape == (2, 3)


def test_models_have_the_layers_that_code_looks_for() -> None:
    text = """
    def count(model, other):
        kinds = [type(part) for part in other.children() if isinstance(part, nn.Conv2d)]
        for name, part in model.backbone.named_modules():
            if isinstance(part, (Bayes, nn.LayerNorm)) or isinstance(name, str):
                kinds.append(type(part))
        return isinstance(model, Outer)
    """
    function = ast.parse(inspect.cleandoc(text))
    assert list_sought(function, "model") == ["Bayes", "nn.LayerNorm", "str"]
    assert list_sought(function, "other") == ["nn.Conv2d"]
    assert list_sought(function, "kinds") == []


ASKED = """
import torch


class Graph(torch.nn.Module):
    def __init__(self, args, graph):
        super().__init__()
        self.nodes = torch.nn.Embedding(graph.num_nodes(), args.hidden_dim)
        self.kinds = torch.nn.Embedding(len(graph.etypes), args.hidden_dim)
        self.margin = args.margin

    def forward(self, h, r):
        return self.nodes(h.long()) - self.kinds(r)"""
"""Whose file ends without a line end, before the methods of a base are read."""


def _load(text: str, path: Path) -> tuple[Loaded, type]:
    name = text.partition("class ")[2].partition("(")[0].partition(":")[0]
    loaded = load(text, str(path / "m.py"), str(path), name, "original")
    owner = loaded.find(name)
    assert isinstance(owner, type)
    return loaded, owner


def test_an_object_is_asked_by_methods_and_lengths(tmp_path: Path) -> None:
    loaded, owner = _load(ASKED, tmp_path)
    made = next(generate_recipes(owner, "forward", loaded)).build(owner, loaded.find)
    assert isinstance(made, owner)
    rows = [e.num_embeddings for e in made.modules() if isinstance(e, torch.nn.Embedding)]  # type: ignore[attr-defined]
    assert rows == [2, 3]
    function = find_function(parse_once(ASKED), "Graph.forward")
    known = tell_of_object(Declarations(), function, made)
    assert [(known.of(n).kinds, known.of(n).below) for n in "hr"] == [
        (frozenset({"int"}), "2"),
        (frozenset({"int"}), "3"),
    ]


def test_what_is_asked_for_parts_that_every_tensor_has_is_no_configuration(tmp_path: Path) -> None:
    text = "class A:\n    def __init__(self, x):\n        self.x = x.view(x.shape[0], -1)\n"
    _, owner = _load(text, tmp_path)
    (parameter,) = list_parameters(inspect.signature(owner))
    assert offer_settings(owner, parameter, Loaded({}, ""), None, alone=True) == []


def test_a_module_that_is_too_large_is_made_smaller(tmp_path: Path) -> None:
    text = """
import torch


class Decoder(torch.nn.Module):
    def __init__(self, decoder_embedding=4096, initial_features=4096):
        super().__init__()
        self.embed = torch.nn.Linear(initial_features, decoder_embedding)
"""
    loaded, owner = _load(text, tmp_path)
    recipe = next(generate_recipes(owner, "forward", loaded))
    assert str(recipe) == "decoder_embedding=8, initial_features=8"


LATE = """
import torch


class Score:
    def __init__(self, rate=2.0):
        self.rate, self.mask = rate, None
        self.score: torch.Tensor | None = None

    def fit(self, data):
        self.layer = torch.nn.Linear(data.width, data.width)
        self.count = len(data)
        self.table = torch.nn.Embedding(self.num_rows, 8)

    def predict(self, x):
        x = x + self.table.weight.sum() * self.num_rows
        if self.mask is not None:
            x = x * self.mask
        self.seen = x.shape
        return self.layer(x) * self.score / self.count + self.gain * self.rate + self.seen[0]
"""


def test_what_comes_after_init_is_what_the_class_says(tmp_path: Path) -> None:
    loaded, owner = _load(LATE, tmp_path)
    target = Target(loaded, "Score.predict")
    first, second, *_ = list_late(target, Recipe())
    assert sorted(str(first).split(" and ")) == [
        "self.count = 4",
        "self.gain = 0.40625",
        "self.layer = an nn.Linear",
        "self.num_rows = 2",
        "self.score = float[8]",
        "self.table = an nn.Embedding",
    ]
    assert "self.score = float[4, 8]" in str(second)
    made = first.build(owner, loaded.find)
    assert made.predict(torch.ones(3, 8)).shape == (3, 8)  # type: ignore[attr-defined]


def test_a_search_ends_where_no_argument_helps() -> None:
    found = SearchResult()
    for _ in range(200):
        found.note("AttributeError: 'Score' object has no attribute 'gain'", "Score")
    assert found.ends(math.inf)
    assert not found.ends(math.inf)
    for _ in range(200):
        found.note("AttributeError: 'Tensor' object has no attribute 'gain'", "Score")
    assert not found.ends(math.inf)
