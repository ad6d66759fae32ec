"""What else than results and gradients tells two versions apart; what must not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.calls.coverage import is_printed  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.slicing import list_operators  # noqa: E402 - same
from npufix.rewriters.verification.inputs.target import Assignment, CallCase  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

LOGGED = """
LOG = {"loss": [], "steps": 0}
def loss(x: torch.Tensor) -> torch.Tensor:
    value = x.pow(2).mean()
    LOG["loss"].append(value.item())
    LOG["steps"] += 1
    return value
"""


def test_data_of_the_module_is_compared() -> None:
    found = verdict(LOGGED, ('    LOG["loss"].append(value.item())\n', "    value.item()\n"))
    assert found.status is Status.REFUTED
    assert "LOG['loss']" in found.reason
    assert found.script


def test_another_way_to_the_same_data_is_equivalent() -> None:
    found = verdict(LOGGED, ('LOG["loss"].append(value.item())', 'LOG["loss"] += [float(value)]'))
    assert found.status is Status.EQUIVALENT, found


def test_what_is_left_for_the_second_call_is_compared() -> None:
    text = """
    calls = 0
    def smooth(x: torch.Tensor) -> torch.Tensor:
        global calls
        calls += 1
        return x * 0.5
    """
    found = verdict(text, ("calls += 1", "calls = 1"))
    assert found.status is Status.REFUTED
    assert "after x=float" in found.reason
    assert found.script


CHECKED = """
def split(x: torch.Tensor, parts: int = 2) -> torch.Tensor:
    if x.shape[-1] % parts:
        raise ValueError("it does not fit")
    return torch.stack(x.chunk(parts, -1))
"""


@pytest.mark.parametrize(
    "new",
    [
        '        raise RuntimeError("it does not fit")',
        "        return x[None]",
    ],
)
def test_what_the_original_refuses_must_be_refused_alike(new: str) -> None:
    found = verdict(CHECKED, ('        raise ValueError("it does not fit")', new))
    assert found.status is Status.REFUTED
    assert "the original raises ValueError" in found.reason
    assert found.script


def test_another_message_of_the_same_exception_is_equivalent() -> None:
    found = verdict(CHECKED, ('"it does not fit"', 'f"{x.shape} does not fit"'))
    assert found.status is Status.EQUIVALENT, found
    assert any(error.startswith("ValueError") for error in found.tried.errors)


MERGED = '''
def merge(x: torch.Tensor, causal=None) -> torch.Tensor:
    """x (B, S), causal (S, S) bool or None."""
    if x.dim() != 2:
        raise ValueError("x must be (B, S)")
    if causal is not None and causal.shape[-1] != x.shape[-1]:
        raise ValueError("they differ")
    return x if causal is None else x[:, None].masked_fill(causal, 0.0)
'''


def test_what_a_text_asks_for_is_what_code_raises_without() -> None:
    first = '    if x.dim() != 2:\n        raise ValueError("x must be (B, S)")\n'
    found = verdict(MERGED, (first, ""))
    assert found.status is Status.REFUTED, found
    assert "the original raises ValueError: x must be (B, S)" in found.reason


def test_an_option_that_is_said_to_be_of_flags_is_passed() -> None:
    found = verdict(MERGED, ('raise ValueError("they differ")', 'raise ValueError(f"{x.shape}")'))
    assert found.status is Status.EQUIVALENT, found
    assert any("causal=bool" in one for one in found.tried.arguments)


SCOPE = """
class Scope:
    def __init__(self):
        self.depth = 0

    def run(self, fn, x: torch.Tensor) -> torch.Tensor:
        self.depth += 1
        try:
            return fn(x) * self.depth
        finally:
            self.depth -= 1
"""
STEPS = """
class Steps:
    def __init__(self):
        self.steps = self.failed = 0

    def run(self, loss_fn, x: torch.Tensor):
        try:
            loss = loss_fn(x)
        except RuntimeError:
            self.failed += 1
            return None
        self.steps += 1
        return loss
"""


def test_what_is_left_of_a_call_whose_function_fails_shows_in_the_next_one() -> None:
    plain = "        out = fn(x) * self.depth\n        self.depth -= 1\n        return out\n"
    found = verdict(SCOPE, (SCOPE[SCOPE.index("        try:") :], plain))
    assert found.status is Status.REFUTED, found
    assert "after fn=a function that raises" in found.reason
    assert found.script


def test_a_loss_of_one_argument_is_none_of_results_and_labels() -> None:
    late = ("        self.steps += 1\n        return loss", "        return loss")
    found = verdict(STEPS, late, ("try:\n", "try:\n            self.steps += 1\n"))
    assert found.status is Status.REFUTED, found
    assert "self.steps" in found.reason


def test_a_missing_key_is_an_exception_of_the_code() -> None:
    text = """
    KINDS = {"relu": F.relu, "silu": F.silu}
    def act(x: torch.Tensor, kind: str = "relu") -> torch.Tensor:
        return KINDS[kind](x)
    """
    found = verdict(text, ("KINDS[kind](x)", "KINDS.get(kind, F.relu)(x)"))
    assert found.status is Status.REFUTED
    assert "KeyError" in found.reason
    text = """
    def pick(batch: dict, key: str = "input_ids") -> torch.Tensor:
        try:
            return batch[key].contiguous()
        except KeyError:
            raise ValueError(f"no {key}") from None
    """
    found = verdict(text, ("except KeyError", "except IndexError"))
    assert "raises ValueError: no input_ids, the patched code raises KeyError" in found.reason


def test_a_weight_of_two_parts_is_met_twice() -> None:
    text = """
    def weights(model: torch.nn.Module) -> list:
        found, seen = [], set()
        for module in model.modules():
            for p in module.parameters(recurse=False):
                if id(p) not in seen:
                    seen.add(id(p))
                    found.append(p)
        return found
    """
    found = verdict(text, ("seen.add(id(p))", "seen.add(id(module))"))
    assert found.status is Status.REFUTED, found
    assert "two layers that share a weight" in found.reason


def test_numbers_drawn_for_nothing_move_those_of_the_others() -> None:
    text = """
    def jitter(x: torch.Tensor) -> torch.Tensor:
        return x.tanh()
    """
    found = verdict(text, ("    return x.tanh()", "    torch.rand(1)\n    return x.tanh()"))
    assert found.status is Status.REFUTED
    assert "random numbers" in found.reason
    assert found.script


def test_a_tensor_without_its_device_is_refuted_without_a_device() -> None:
    text = """
    def shifted(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.shape[-1], device=x.device)
        return x + steps
    """
    found = verdict(text, (", device=x.device", ""))
    assert found.status is Status.REFUTED
    assert "on every device but the CPU" in found.reason
    assert found.script


CONTIGUOUS = """
def heads(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y.transpose(-1, -2){}
"""


def test_a_result_made_contiguous_on_purpose_stays_so() -> None:
    found = verdict(CONTIGUOUS.format(".contiguous()"), (".contiguous()", ""))
    assert found.status is Status.REFUTED
    assert "contiguous" in found.reason


def test_strides_that_a_kernel_happened_to_make_are_said_and_refute_nothing() -> None:
    text = """
    def summed(x: torch.Tensor) -> torch.Tensor:
        return x + 1
    """
    found = verdict(text, ("return x + 1", "return (x.transpose(0, -1) + 1).transpose(0, -1)"))
    assert found.status is not Status.REFUTED, found
    assert not found.notes or "strides" in found.notes[0]


def test_nan_decides_where_the_code_treats_it() -> None:
    text = """
    def clean(x: torch.Tensor) -> torch.Tensor:
        x = torch.where(torch.isfinite(x), x, 0.0)
        return x * 2
    """
    found = verdict(text, ("torch.isfinite(x)", "~torch.isnan(x)"))
    assert found.status is Status.REFUTED


def test_elsewhere_nan_is_said_and_refutes_nothing() -> None:
    text = """
    def gate(x: torch.Tensor) -> torch.Tensor:
        return x.exp() / (1 + x.exp())
    """
    found = verdict(text, ("x.exp() / (1 + x.exp())", "torch.sigmoid(x)"))
    assert found.status is Status.EQUIVALENT, found
    assert found.notes[0].startswith("for NaN and Inf")


def test_ordinary_numbers_show_a_difference_before_nan() -> None:
    text = """
    def quantise(x: torch.Tensor) -> torch.Tensor:
        clamped = x.clamp(-0.5, 0.5)
        return clamped + (clamped.round() - clamped).detach()
    """
    found = verdict(text, ("clamped + (clamped.round() - clamped)", "x + (clamped.round() - x)"))
    assert found.status is Status.REFUTED
    assert found.reason.startswith("gradient of x")
    assert "NaN" not in found.reason


def test_a_caller_with_a_name_of_the_parameter_is_shown() -> None:
    text = """
    def scaled(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return x * gamma
    """
    found = verdict(text, ("gamma", "weight"))
    assert found.status is Status.REFUTED
    assert found.script


def test_what_is_tried_is_told() -> None:
    found = verdict(LOGGED, ("x.pow(2)", "(x * x)"))
    assert found.status is Status.EQUIVALENT, found
    assert {"float32", "bfloat16", "float16"} == set(found.tried.dtypes)
    assert "with gradients" in found.tried.modes
    assert any(text.startswith("x=float[") for text in found.tried.arguments)
    assert found.tried.lines


MODULE = """
class Gate(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = torch.nn.Linear(dim, dim)
    def forward(self, x):
        g = self.proj(x)
        return g * torch.sigmoid(g)
"""
TWICE = "return self.proj(x) * torch.sigmoid(self.proj(x))"


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_a_module_that_is_called_once_more_is_said_or_refused() -> None:
    lines = "g = self.proj(x)\n        return g * torch.sigmoid(g)"
    rule = verdict(MODULE, (lines, TWICE), by_hand=False)
    assert rule.status is Status.NOT_VERIFIED
    assert "a Linear 2 times instead of 1" in rule.reason
    assert any("a Linear 2 times" in note for note in verdict(MODULE, (lines, TWICE)).notes)


def test_what_is_written_into_shows_more_than_a_leaf_that_refuses_it() -> None:
    text = """
    def hidden(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(mask.bool(), 0.0) * 2
    """
    found = verdict(text, ("x.masked_fill(", "x.masked_fill_("))
    assert found.status is Status.REFUTED
    assert "x after the call" in found.reason


LOOP = """    found = []
    for i in range(rows.shape[0]):
        if bool(keep[i]):
            found.append(rows[i] * 2)
"""
KEPT = f"""
def kept(rows: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    assert keep.shape == rows.shape[:1]
{LOOP}    if not len(found):
        return rows.new_zeros((0, rows.shape[1]))
    return torch.stack(found)
"""
AT_ONCE = "    found = rows[keep.reshape(-1).bool()] * 2\n"


@pytest.mark.parametrize(
    ("rows", "status"), [("(0, ", Status.EQUIVALENT), ("(1, ", Status.REFUTED)]
)
def test_lines_that_only_an_edge_reaches_are_compared_there(rows: str, status: Status) -> None:
    at_once = (LOOP, AT_ONCE), ("torch.stack(found)", "found"), ("((0, ", f"({rows}")
    found = verdict(KEPT, *at_once)
    assert found.status is status, found.reason


@pytest.mark.parametrize("at_nan", ["x * 5", "x + x + x"])
def test_lines_that_only_nan_reaches_are_not_compared_where_it_refutes_nothing(at_nan: str) -> None:
    text = """
    def scaled(x: torch.Tensor) -> torch.Tensor:
        top = x.sum()
        if (top - top).item() == 0:
            return x * 2
        return x * 3
    """
    found = verdict(text, ("x * 2", "x + x"), ("x * 3", at_nan))
    assert found.status is Status.NOT_VERIFIED
    assert "reach line" in found.reason


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("torch.stack([x, -x]).unbind()", "x.clone(), -x", Status.EQUIVALENT),
        ("x.exp(), x.exp()", "(x.exp(),) * 2", Status.REFUTED),
    ],
)
def test_two_halves_of_one_storage_share_nothing(old: str, new: str, status: Status) -> None:
    found = verdict(f"def pair(x: torch.Tensor):\n    return {old}\n", (old, new))
    assert found.status is status, found


def test_a_number_of_python_has_no_dtype_that_a_tensor_could_keep() -> None:
    text = """
    def largest(x: torch.Tensor) -> float:
        return (x * 0.5).amax().item()
    """
    assert verdict(text, (".item()", ".detach()")).status is Status.EQUIVALENT
    assert verdict(text, (".amax().item()", ".amin().detach()")).status is Status.REFUTED


COUNTED = """
class Counted(torch.nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean + x.mean(0)
        return x - self.mean.float()
"""


def test_dtypes_that_buffers_are_made_in_are_compared() -> None:
    found = verdict(COUNTED, ("float64", "float32"))
    assert found.status is Status.REFUTED
    assert "self.mean made in torch.float64" in found.reason
    assert verdict(COUNTED, ("x.mean(0)", "x.mean(dim=0)")).status is Status.EQUIVALENT


GATED = """
def gated(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.5 * x)
"""
OPERATOR = """
class Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate = torch.sigmoid(1.5 * x)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx, grad):
        x, gate = ctx.saved_tensors
        return grad * (gate + 1.5 * x * gate * (1 - gate))

def gated(x: torch.Tensor) -> torch.Tensor:
    return Gated.apply(x)
"""


def test_an_operator_whose_gradient_has_a_wrong_one_itself() -> None:
    found = verdict(GATED, (GATED, OPERATOR))
    assert found.status is Status.REFUTED
    assert "gradient of the gradients by x" in found.reason


def test_an_operator_whose_gradient_has_none_without_a_word() -> None:
    saved = OPERATOR.replace(
        "ctx.save_for_backward(x, gate)",
        "ctx.save_for_backward(gate + 1.5 * x * gate * (1 - gate), gate)",
    ).replace("return grad * (gate + 1.5 * x * gate * (1 - gate))", "return grad * x")
    found = verdict(GATED, (GATED, saved))
    assert found.status is Status.REFUTED
    assert "gradient of the gradients by x" in found.reason


def test_an_operator_whose_gradient_has_a_right_one_itself() -> None:
    again = OPERATOR.replace(
        "x, gate = ctx.saved_tensors",
        "x, _ = ctx.saved_tensors\n        gate = torch.sigmoid(1.5 * x)",
    )
    found = verdict(GATED, (GATED, again))
    assert found.status is Status.EQUIVALENT, found


def test_an_operator_that_refuses_second_derivatives_aloud_is_named() -> None:
    once = OPERATOR.replace(
        "    @staticmethod\n    def backward",
        "    @staticmethod\n    @torch.autograd.function.once_differentiable\n    def backward",
    )
    found = verdict(GATED, (GATED, once))
    assert found.status is Status.EQUIVALENT, found
    assert any("have none themselves" in note for note in found.notes)


BESIDE = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x

def square(x: torch.Tensor) -> torch.Tensor:
    return Square.apply(x)

def double(x: torch.Tensor) -> torch.Tensor:
    return x + x
"""


def test_an_operator_beside_a_function_asks_for_nothing_of_it() -> None:
    before = "import torch\n" + BESIDE
    after = before.replace("grad * 2 * x", "grad * (x + x)").replace("x + x\n", "2 * x\n")
    for name, own in (("square", True), ("Square.backward", True), ("double", False)):
        changed = list_operators(before, name) != list_operators(after, name)
        assert changed is own, name


def test_calls_with_other_numbers_have_other_names() -> None:
    names = {str(CallCase(Assignment(None, {}), seed=number)) for number in range(3)}
    assert len(names) == 3


def test_a_table_is_asked_for_again_with_one_size_that_is_another() -> None:
    text = """
    TABLES = {}
    def table(rows: int, width: int) -> torch.Tensor:
        key = rows, width
        if key not in TABLES:
            TABLES[key] = torch.arange(rows * width).view(rows, width)
        return TABLES[key]
    """
    other = "next((k for k in TABLES if k[0] == rows), (rows, width))"
    found = verdict(text, ("key = rows, width", f"key = {other}"))
    assert found.status is Status.REFUTED, found
    assert "after rows=" in found.reason


@pytest.mark.parametrize(("line", "printed"), [(5, True), (6, True), (7, True), (8, False)])
def test_what_is_printed_is_told_from_what_is_returned(line: int, *, printed: bool) -> None:
    text = """
def test(batches, model):
    right = other = 0
    for x, y in batches:
        hits = model(x).eq(y)
        right += hits.sum().item()
    print(f"{right} right")
    return other + 1
"""
    assert is_printed(text, [line]) is printed
