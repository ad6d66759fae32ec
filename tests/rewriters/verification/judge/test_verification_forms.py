"""Rules: pattern against replacement, in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rules.substitution import Form

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch_npu  # noqa: TC004 - the verifier supplies it

    from npufix.rules.substitution import Draw


def check(
    pattern: Callable[..., Any], replacement: Callable[..., Any], inputs: Callable[..., Any]
) -> Verdict:
    from npufix.rewriters.verification.judge.verify_rule import verify_rule

    return verify_rule(Form(pattern, replacement, inputs), seed=1)


def norm(x: Any, weight: Any, literal_eps: float) -> Any:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + literal_eps)
    return weight * wide.to(x.dtype)


def norm_inputs(draw: Draw) -> dict[str, Any]:
    dtype = draw.choice((torch.float32, torch.bfloat16, torch.float16))
    width = draw.integer(1, 9)
    make = draw.choice((draw.floats, draw.wild))
    return {
        "x": make(draw.integer(1, 4), width, dtype=dtype),
        "weight": draw.floats(width, dtype=dtype),
        "literal_eps": draw.choice((1e-6, 1e-5)),
    }


def fused(x: Any, weight: Any, literal_eps: float) -> Any:
    return torch_npu.npu_rms_norm(x, weight, epsilon=literal_eps)[0]


def fused_without_eps(x: Any, weight: Any, literal_eps: float) -> Any:  # noqa: ARG001
    return torch_npu.npu_rms_norm(x, weight)[0]


def test_a_fused_norm_is_equivalent() -> None:
    verdict = check(norm, fused, norm_inputs)
    assert verdict.status is Status.EQUIVALENT, verdict
    assert "npu_rms_norm" in verdict.ground
    assert verdict.cases == 24


def test_a_forgotten_literal_is_refuted() -> None:
    verdict = check(norm, fused_without_eps, norm_inputs)
    assert verdict.status is Status.REFUTED
    assert "literal_eps=1e-05" in verdict.counterexample


def clear(x: Any, mask: Any) -> Any:
    x[mask] = 0
    return x


def clear_inputs(draw: Draw) -> dict[str, Any]:
    shape = (draw.integer(0, 4), draw.integer(1, 5))
    return {"x": draw.wild(*shape, dtype=torch.float32), "mask": draw.booleans(*shape)}


def test_writes_into_arguments_are_compared() -> None:
    good = check(clear, lambda x, mask: x.masked_fill_(mask, 0), clear_inputs)
    copied = check(clear, lambda x, mask: x.masked_fill(mask, 0), clear_inputs)
    multiplied = check(clear, lambda x, mask: x.mul_(~mask), clear_inputs)
    assert good.status is Status.EQUIVALENT, good
    assert copied.status is multiplied.status is Status.REFUTED
    assert "nan" in multiplied.counterexample


def test_a_pattern_that_never_runs_is_not_verified() -> None:
    verdict = check(lambda x, mask: x + mask.nothing, lambda x, mask: x, clear_inputs)  # noqa: ARG005
    assert verdict.status is Status.NOT_VERIFIED
    assert "nothing" in verdict.reason


def test_the_drawn_values_repeat() -> None:
    from npufix.rewriters.verification.judge.verify_rule import SeededDraw

    def values(seed: int) -> list[Any]:
        draw = SeededDraw(seed)
        return [
            draw.integer(0, 99),
            draw.choice("abc"),
            draw.wild(3, 3, dtype=torch.float32).nan_to_num().tolist(),
            draw.integers(9, low=-2, high=2).tolist(),
        ]

    assert values(3) == values(3) != values(4)


# --- the stand-in of torch_npu


def install(version: str = "") -> Any:
    from npufix.rewriters.verification.reference import npu_operators

    return npu_operators.install(version)


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("", "2.14.0"),
        ("unknown", "2.14.0"),
        ("2.7.1", "2.7.1"),
        ("2.7.1.post4", "2.7.1"),
        ("2.7.1.post9", "2.7.1.post11"),
        ("2.1.0+gitabcdef", "2.1.0.post17"),
        ("2.5.0", "2.4.0.post4"),
        ("1.11", "2.1.0.post17"),
        ("2.10.0", "2.10.0.post7"),
    ],
)
def test_the_nearest_recorded_version_stands_for_the_users(wanted: str, chosen: str) -> None:
    assert install(wanted).__version__ == chosen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_reference_kernel_rounds_once(dtype: Any) -> None:
    npu = install()
    x, gamma = torch.randn(4, 5, 16).to(dtype), torch.randn(16).to(dtype)
    y, rstd = npu.npu_rms_norm(x, gamma, epsilon=1e-5)
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * gamma.double()
    assert y.dtype == dtype
    assert (rstd.dtype, rstd.shape) == (torch.float32, (4, 5, 1))
    ulp = torch.finfo(dtype).eps
    assert ((y.double() - expected).abs() <= ulp * (0.51 * expected.abs() + 1e-6) + 1e-6).all()


def test_the_reference_backward_is_the_derivative() -> None:
    npu = install()
    x = torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)
    gamma = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: npu.npu_rms_norm(a, b, 1e-5)[0], (x, gamma))


def test_what_the_operator_refuses_is_refused() -> None:
    npu = install()
    x = torch.randn(2, 8)
    with pytest.raises(RuntimeError, match="eps"):
        npu.npu_rms_norm(x, torch.ones(8), eps=1e-6)
    with pytest.raises(RuntimeError, match="not the tail"):
        npu.npu_rms_norm(x, torch.ones(2))
    with pytest.raises(RuntimeError, match="no kernel for input"):
        npu.npu_rms_norm(x, torch.ones(8).half())
    assert npu.npu_rms_norm(x.half(), torch.ones(8))[0].dtype == torch.float16


def test_an_operator_that_a_version_lacks_is_an_attribute_error() -> None:
    from npufix.rewriters.verification.kernels.common import NoReferenceKernelError
    from npufix.rewriters.verification.reference import npu_operators

    known = {"npu_new": {"npu_new(Tensor x) -> Tensor": ["2.14.0"]}}
    table = npu_operators.OperatorTable(known, ["2.4.0"])
    assert npu_operators.schemas_of("2.4.0", table) == {}
    module = npu_operators._stand_in("2.4.0", {})
    with pytest.raises(AttributeError, match=r"2\.4\.0 has no operator"):
        _ = module.npu_rms_norm
    with pytest.raises(NoReferenceKernelError):
        _ = module.npu_mish


# --- the comparison


def accepted(  # noqa: PLR0913, PLR0917 - all that is known of a tensor
    original: Any,
    patched: Any,
    oracle: Any,
    dtype: Any = None,
    what: str = "result",
    terms: int = 1,
) -> list[bool]:
    from npufix.rewriters.verification.judge.allowances import Triple
    from npufix.rewriters.verification.judge.judge import find_accepted

    dtype = dtype or torch.float32
    left, right = (torch.tensor(v, dtype=dtype) for v in (original, patched))
    reference = None if oracle is None else torch.tensor(oracle, dtype=torch.float64)
    answer: list[bool] = find_accepted(
        Triple(what, left, right, reference, terms=terms), 0.0
    ).tolist()
    return answer


def test_a_gradient_may_be_off_as_a_sum_of_as_many_terms_is() -> None:
    exact, near, far = [147.517], [147.5161], [147.5]
    what = "gradient of w"
    assert accepted(exact, near, exact, what=what, terms=7680) == [True]
    assert accepted(exact, far, exact, what=what, terms=7680) == [False]
    assert accepted(exact, near, exact, what=what) == [False]
    assert accepted(exact, near, exact, terms=7680) == [False]


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("original", "patched", "oracle", "passes"),
    [
        ([1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [True, True]),
        ([1.0, 2.0], [1.0 + 2e-7, 2.0], [1.0, 2.0], [True, True]),
        ([1.0, 2.0], [1.0 + 2e-6, 2.0], [1.0, 2.0], [False, True]),
        ([1.001, 2.0], [0.998, 2.0], [1.0, 2.0], [True, True]),
        ([1.001, 2.0], [0.997, 2.0], [1.0, 2.0], [False, True]),
        ([NAN, 2.0], [NAN, NAN], [NAN, 2.0], [True, False]),
        ([INF, 2.0], [1.0, 2.0], [1.0, 2.0], [True, True]),
        ([INF, 2.0], [1.5, 2.0], [1.0, 2.0], [False, True]),
        ([0.0, 2.0], [1.0, 2.0], [1.0, 2.0], [True, True]),
        ([-1e9, 2.0], [-1e9, 2.001], [-1e9, 2.0], [True, False]),
        ([1.0, 2.0], [1.0 + 2e-7, 2.1], None, [True, False]),
    ],
)
def test_tolerance_is_earned(original: Any, patched: Any, oracle: Any, passes: Any) -> None:
    assert accepted(original, patched, oracle) == passes


def test_what_a_gradient_loses_in_halves_is_off_as_its_sums_are() -> None:
    lost = [NAN, 30.0], [1.04, 30.0], [1.0, 30.0], torch.float16
    assert accepted(*lost, "gradient of x") == [True, True]
    assert accepted(*lost) == [False, True]
    assert accepted([NAN, 30.0], [9.0, 30.0], *lost[2:], "gradient of x") == [False, True]


def test_integers_are_exact() -> None:
    assert accepted([2, 3], [1, 3], None, torch.int64) == [False, True]


def test_only_needed_definitions_are_executed() -> None:
    import ast

    from npufix.rewriters.verification.inputs.source.slicing import slice_module

    tree = ast.parse(
        "import torch\nimport heavy\nA = 1\nB = A + 1\n"
        "def helper(): return B\ndef target(): return helper()\n"
        "train(target)\nheavy.train()\ntarget.flag = 1\ntarget()\nfor i in range(3): heavy.go()\n"
    )
    kept = [ast.unparse(s).splitlines()[0] for s in slice_module(tree, "target")]
    assert kept == [
        "A = 1",
        "B = A + 1",
        "def helper():",
        "def target():",
        "train(target)",
        "target.flag = 1",
    ]


def test_results_are_named_for_people() -> None:
    from npufix.rewriters.verification.calls.leaves import find_leaves

    value = {"a": (torch.ones(1), None), "b": SimpleNamespace(c=3)}
    assert {n for n, _ in find_leaves(value, "result")} >= {
        "result['a'][0]",
        "result['a'][1]",
        "result['b'].c",
    }


def test_a_module_that_is_a_result_is_its_parts_weights_and_modes() -> None:
    from npufix.rewriters.verification.calls.leaves import find_leaves, go_through

    layer = torch.nn.Linear(2, 3)
    found = dict(find_leaves(go_through([layer]), "result"))
    assert found["result[0]['weight']"] is layer.weight
    assert found["result[0]['class']"] == "Linear"
    layer.eval()
    assert dict(find_leaves(go_through(layer), "result"))["result['training']"] is False


def test_numbers_of_eight_bits_are_compared_as_those_of_sixteen() -> None:
    from npufix.rewriters.verification.calls.leaves import find_leaves

    narrow = torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn)
    found = dict(find_leaves(narrow, "result"))
    assert found["dtype of result"] == "torch.float8_e4m3fn"
    assert torch.equal(found["result"], narrow.to(torch.bfloat16))


def test_hooks_that_a_call_leaves_are_counted() -> None:
    from npufix.rewriters.verification.inputs.objects.state import read_state

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert read_state(model, "model")["hooks of model"] == 0
    model[0].register_forward_hook(lambda *_: None)
    assert read_state(model, "model")["hooks of model"] == 1


def test_a_loader_is_what_it_loads_however_it_is_fed() -> None:
    from npufix.rewriters.verification.calls.leaves import find_leaves

    def plain(size: int, **settings: Any) -> dict[str, object]:
        loader = torch.utils.data.DataLoader(list(range(6)), size, **settings)
        found = find_leaves(loader, "loader")
        return {name: value for name, value in found if not name.startswith("state of")}

    fed = {"num_workers": 2, "pin_memory": True, "persistent_workers": True}
    assert plain(2) == plain(2, **fed)
    assert plain(2) != plain(3)
    assert plain(2) != plain(2, drop_last=True)


def celu(x: Any, alpha: float) -> Any:
    return torch.nn.functional.celu(x, alpha=alpha)


def celu_of_one(x: Any, alpha: float = 1.0) -> Any:
    return torch.celu(x, alpha=alpha)


def celu_of_two(x: Any, alpha: float = 2.0) -> Any:
    return torch.celu(x, alpha=alpha)


@pytest.mark.parametrize(
    ("replacement", "status"), [(celu_of_one, Status.EQUIVALENT), (celu_of_two, Status.REFUTED)]
)
def test_a_default_is_what_the_operator_does_by_itself(
    replacement: Callable[..., Any], status: Status
) -> None:
    from npufix.advisor.rules_test.mutations import without_defaults
    from npufix.rewriters.verification.judge.verify_rule import verify_rule

    def inputs(draw: Draw) -> dict[str, Any]:
        return {"x": draw.floats(3, dtype=torch.float32), "alpha": draw.choice((0.5, 1.0))}

    shorter = without_defaults(Form(celu, replacement, inputs))
    assert shorter is not None
    assert verify_rule(shorter, rounds=4).status is status
