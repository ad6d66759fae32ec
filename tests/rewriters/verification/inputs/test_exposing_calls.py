"""Changes whose difference only shows for sizes, values, forms and arguments of certain kinds."""

from __future__ import annotations

from textwrap import dedent

import pytest
from exposing_programs import (
    ATTENTION,
    BOUNDED,
    CLASSES,
    COPIED,
    COUNTED,
    EXPERTS,
    FOCAL,
    FRAMES,
    HALVES,
    IMAGE,
    KEPT,
    KEPT_LATER,
    LION,
    MASKED,
    OPTIMIZER,
    PATCHES,
    RESIDUAL,
    SCALED,
    USED,
    WINDOWS,
    WRONG,
)

pytest.importorskip("torch")

from npufix.advisor.verify.changed_functions import find_touched
from npufix.rewriters.verification import Job
from npufix.rewriters.verification.calls.coverage import LinesToCover
from npufix.rewriters.verification.judge.verify_function import verify_function
from npufix.rewriters.verification.verdict import Status, Verdict


def verified(text: str, old: str, new: str, assumed: tuple[str, ...] = ()) -> Verdict:
    """Verify a change of one expression."""
    before = dedent(text).lstrip()
    after = before.replace(old, new)
    assert after != before
    (one,) = find_touched(before, after)
    lines = one.lines_original, one.lines_changed
    job = Job("/user/m.py", "/user", before, after, one.qualname, *lines, assumed=assumed,
              by_hand=True)  # fmt: skip
    return verify_function(job).verdict


_WITHOUT_PROGRAM = ("hooks of a module", "numbers of segments", "an iterator that ends")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_changes_are_refuted(name: str) -> None:
    verdict = verified(*WRONG[name])
    assert verdict.status is Status.REFUTED, verdict
    assert verdict.script or name in _WITHOUT_PROGRAM, verdict.notes


def test_an_optimiser_takes_steps_with_weights_of_its_own() -> None:
    assert verified(OPTIMIZER, "mul_(0.5)", "mul_(0.25)").status is Status.REFUTED
    first = verified(OPTIMIZER, 'alpha=group["lr"]', 'alpha=self.param_groups[0]["lr"]')
    assert "two groups" in first.reason, first
    rows = verified(OPTIMIZER, "add_(p.grad)", "add_(p.grad if p.dim() < 3 else p.grad * 2)")
    assert "some of a convolution" in rows.reason, rows
    above = "                p.sub_(kept"
    halved = f"                if p.dim() > 2:\n                    kept = kept / 2\n{above}"
    rows = verified(OPTIMIZER.replace(above, halved), "kept / 2", "kept / 4")
    assert "some of a convolution" in rows.reason, rows
    late = verified(LION, USED + KEPT_LATER, KEPT_LATER + USED)
    assert late.status is Status.REFUTED, late
    assert "take_steps(module.Average.step" in late.script
    loop = '            for p in group["params"]:\n'
    empty = (
        "            if all(p.grad is None for p in group['params']):\n                continue\n"
    )
    assert verified(OPTIMIZER, loop, empty + loop).status is Status.EQUIVALENT
    right = verified(OPTIMIZER, "p.sub_(kept, alpha=group", "p.add_(kept, alpha=-group")
    assert right.status is Status.EQUIVALENT, right


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (ATTENTION, "scores.softmax(-1)", "torch.softmax(scores, dim=3)"),
        (
            COUNTED,
            "torch.bincount(ids, minlength=experts).cumsum(0)",
            "(ids[None] <= torch.arange(experts)[:, None]).sum(1)",
        ),
        (FRAMES, ".to(torch.uint8)", ".type_as(a)"),
        (PATCHES, "permute(0, 2, 4, 3, 5, 1)", "permute(0, 2, 4, 3, 5, 1).contiguous()"),
        (FOCAL, '"none").mean(-1)', '"none").mean(1)'),
        (MASKED.replace("MASK", "mask == 0"), "mask == 0", "mask.logical_not()"),
        (
            'def f(batch: dict, x):\n    """batch: y (n,); x (n,)"""\n    return x + batch["y"]\n',
            'x + batch["y"]',
            'batch["y"] + x',
        ),
        (HALVES, "-x[..., : d // 2], x[..., d // 2 :]", "-x.chunk(2, -1)[0], x.chunk(2, -1)[1]"),
        (  # an image without rows
            IMAGE,
            'torch.einsum("oc,bchw->bohw", self.weight, x)',
            "F.conv2d(x, self.weight[:, :, None, None])",
        ),
        (EXPERTS, "hot.to(x.dtype) @ self.weight", "self.weight[idx]"),
        (  # what copies some strides only
            WINDOWS.replace(COPIED, KEPT),
            "contiguous()",
            "clone(memory_format=torch.contiguous_format)",
        ),
        (
            CLASSES,
            "F.cross_entropy(logits, target",
            "F.nll_loss(F.log_softmax(logits, -1), target",
        ),
        (
            'def f(x, i):\n    """x: [N, C], i: [2, E]"""\n    a, b = i\n    return x[a] * x[b]\n',
            "x[a] * x[b]",
            "x.index_select(0, a) * x.index_select(0, b)",
        ),
        (  # lines that only two dtypes at once reach
            SCALED,
            "return",
            "if x.dtype != self.weight.dtype:\n            x = x.to(self.weight)\n        return",
        ),
        (
            RESIDUAL,
            "return residual",
            "if x.dtype != residual.dtype:\n        x = x.to(residual.dtype)\n    return residual",
        ),
    ],
)
def test_right_changes_are_not_refuted_by_calls_that_nobody_makes(
    text: str, old: str, new: str
) -> None:
    verdict = verified(text, old, new)
    assert verdict.status is Status.EQUIVALENT, verdict


def test_what_a_class_refuses_to_be_made_with_refutes_nothing() -> None:
    verdict = verified(BOUNDED, "self.p < 1", "self.p <= 1")
    assert verdict.status is Status.NOT_VERIFIED, verdict


def test_what_a_literal_switches_off_need_not_run() -> None:
    text = "if False:\n    a = 1\nelse:\n    a = 2\n"
    assert LinesToCover(text, "m.py", [1]).unreached({1}) == []


def test_sizes_at_which_the_original_makes_nan_are_said() -> None:
    # With fewer keys than queries, some see none: nobody calls it so.
    hidden = ATTENTION.replace("-1e4", 'float("-inf")')
    found = verified(hidden, "tril(s - t)", "tril(max(s - t, 0))")
    assert found.status is Status.EQUIVALENT, found
    assert any(note.startswith("where the original makes NaN: ") for note in found.notes)


def test_an_assumption_keeps_calls_out() -> None:
    text = "import torch\n\ndef f(x, mask):\n    y = x.clone()\n    y[mask] = 0\n    return y\n"
    change = (
        "    y = x.clone()\n    y[mask] = 0\n    return y\n",
        "    return x.masked_fill(mask, 0)\n",
    )
    assert verified(text, *change).status is Status.NOT_VERIFIED  # flags may be of rows
    assumed = "x: float[b, t]", "mask: bool[b, t]"
    assert verified(text, *change, assumed).status is Status.EQUIVALENT
    comments = "".join(f"# npufix: assume {one}\n" for one in assumed)
    assert verified(text.replace("def f", f"{comments}def f"), *change).status is Status.EQUIVALENT
    wrong = verified(text.replace("def f", "# npufix: assume x: float\ndef f"), *change)
    assert wrong.status is Status.NOT_VERIFIED
    assert "has no shape" in wrong.reason
