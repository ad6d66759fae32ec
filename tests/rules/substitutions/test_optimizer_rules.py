"""Optimizers, cross entropy and scaled products: mistakes that show, and code of the field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from rule_checks import each_mistake, refuted

from npufix.rewriters.find import find_sites
from npufix.rules.shared.operands import optimizer_settings
from npufix.rules.substitution import Safety
from npufix.rules.substitutions import eager_cross_entropy, fused_optimizer, scaled_matmul_add

if TYPE_CHECKING:
    import torch_npu  # noqa: TC004 - the verifier supplies it
    from rule_checks import Mistake
    from torch import Tensor

    from npufix.rewriters.edit.site import Site
    from npufix.rules.substitution import Substitution

HEADER = "import torch\nimport torch.nn.functional as F\n"


def the_site(code: str, rule: Substitution = fused_optimizer.RULE) -> Site:
    (site,) = find_sites(HEADER + code, [rule])
    return site


def text_of(code: str, rule: Substitution = fused_optimizer.RULE) -> str:
    rewrite = the_site(code, rule).rewrite
    assert rewrite is not None
    return rewrite.text


def open_names(code: str, rule: Substitution = fused_optimizer.RULE) -> set[str]:
    return {condition.name for condition in the_site(code, rule).open_conditions}


# --- deliberate mistakes, each on the inputs that the rule itself offers


def eps_forgotten(params: Any, eps: Any, literal_foreach: Any, **settings: Any) -> Any:  # noqa: ARG001
    return torch_npu.optim.NpuFusedAdam(params, **settings)


def betas_swapped(params: Any, betas: Any, literal_foreach: Any, **settings: Any) -> Any:  # noqa: ARG001
    return torch_npu.optim.NpuFusedAdam(params, betas=betas[::-1], **settings)


def decay_decoupled(params: Any, literal_foreach: Any, **settings: Any) -> Any:  # noqa: ARG001
    return torch_npu.optim.NpuFusedAdamW(params, **settings)


def maximum_forgotten(params: Any, amsgrad: Any, literal_foreach: Any, **settings: Any) -> Any:  # noqa: ARG001
    return torch_npu.optim.NpuFusedAdam(params, **settings)


def downhill(params: Any, literal_foreach: Any, literal_maximize: Any, **settings: Any) -> Any:  # noqa: ARG001
    return torch.optim.AdamW(params, fused=True, **settings)


def default_decay(params: Any, lr: Any, literal_maximize: Any, **_: Any) -> Any:
    return torch.optim.AdamW(params, lr=lr, maximize=literal_maximize, fused=True)


def momentum_forgotten(params: Any, lr: Any, weight_decay: Any, **_: Any) -> Any:
    return torch_npu.optim.NpuFusedSGD(params, lr=lr, weight_decay=weight_decay)


def nesterov_forgotten(params: Any, nesterov: Any, literal_foreach: Any, **settings: Any) -> Any:  # noqa: ARG001
    return torch_npu.optim.NpuFusedSGD(params, **settings)


def dampening_forgotten(params: Any, dampening: Any, literal_foreach: Any, **settings: Any) -> Any:  # noqa: ARG001
    return torch_npu.optim.NpuFusedSGD(params, **settings)


def rho_forgotten(params: Any, rho: Any, literal_foreach: Any, **settings: Any) -> Any:  # noqa: ARG001
    return torch_npu.optim.NpuFusedAdadelta(params, **settings)


def not_centered(params: Any, centered: Any, literal_foreach: Any, **settings: Any) -> Any:  # noqa: ARG001
    return torch_npu.optim.NpuFusedRMSprop(params, **settings)


def in_one_dimension(x: Tensor, target: Tensor) -> Tensor:
    return torch_npu.npu_cross_entropy_loss(x, target)[0]


def summed(x: Tensor, target: Tensor) -> Tensor:
    return torch_npu.npu_cross_entropy_loss(x, target, reduction="sum")[0][0]


def probabilities(x: Tensor, target: Tensor) -> Tensor:
    return torch_npu.npu_cross_entropy_loss(x, target)[1]


def without_gradient(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.detach(), target)


def factors_swapped(a: Tensor, b: Tensor, c: Tensor, alpha: float, literal_beta: float) -> Tensor:
    return torch.addmm(c, a, b, beta=alpha, alpha=literal_beta)


def alpha_forgotten(a: Tensor, b: Tensor, c: Tensor, alpha: float) -> Tensor:  # noqa: ARG001
    return torch.addmm(c, a, b)


def beta_forgotten(a: Tensor, b: Tensor, c: Tensor, literal_beta: float) -> Tensor:  # noqa: ARG001
    return torch.addmm(c, a, b)


ADAM = (fused_optimizer.adam, optimizer_settings.adam_inputs)
ADAMW = (fused_optimizer.adamw, optimizer_settings.adamw_inputs)
SGD = (fused_optimizer.sgd, optimizer_settings.sgd_inputs)
MEAN = (eager_cross_entropy.mean, eager_cross_entropy.inputs)
MISTAKES = [
    (*ADAM, eps_forgotten),
    (*ADAM, betas_swapped),
    (*ADAM, decay_decoupled),
    (*ADAM, maximum_forgotten),
    (*ADAMW, downhill),
    (*ADAMW, default_decay),
    (*SGD, momentum_forgotten),
    (*SGD, nesterov_forgotten),
    (*SGD, dampening_forgotten),
    (fused_optimizer.adadelta, optimizer_settings.adadelta_inputs, rho_forgotten),
    (fused_optimizer.rmsprop, optimizer_settings.rmsprop_inputs, not_centered),
    (*MEAN, in_one_dimension),
    (*MEAN, summed),
    (*MEAN, probabilities),
    (*MEAN, without_gradient),
    (scaled_matmul_add.both_scaled, scaled_matmul_add.inputs, factors_swapped),
    (scaled_matmul_add.product_scaled, scaled_matmul_add.alpha_inputs, alpha_forgotten),
    (scaled_matmul_add.addend_scaled, scaled_matmul_add.beta_inputs, beta_forgotten),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_refuted(mistake: Mistake) -> None:
    refuted(*mistake)


# --- optimizers in the code of the field


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (
            "torch.optim.Adam(m.parameters())",
            "torch.optim.AdamW(m.parameters(), weight_decay=0, fused=True)",
        ),
        (
            "torch.optim.Adam(params=m.parameters(), lr=lr, weight_decay=decay)",
            "torch_npu.optim.NpuFusedAdam(m.parameters(), lr=lr, weight_decay=decay)",
        ),
        (
            "torch.optim.SGD(m.parameters(), lr, 0.9, 0, 5e-4, True)",
            (
                "torch_npu.optim.NpuFusedSGD(m.parameters(), lr, momentum=0.9, "
                "weight_decay=5e-4, nesterov=True)"
            ),
        ),
        (
            "torch.optim.Adadelta(m.parameters(), rho=0.95)",
            "torch_npu.optim.NpuFusedAdadelta(m.parameters(), rho=0.95)",
        ),
        (
            "torch.optim.RMSprop(m.parameters(), lr=lr, momentum=0.9)",
            "torch_npu.optim.NpuFusedRMSprop(m.parameters(), lr=lr, momentum=0.9)",
        ),
        (
            "torch.optim.AdamW(m.parameters(), lr=lr, foreach=False)",
            "torch.optim.AdamW(m.parameters(), lr=lr, fused=True)",
        ),
        (
            "torch.optim.AdamW(m.parameters(), lr=lr, maximize=True)",
            "torch.optim.AdamW(m.parameters(), lr=lr, maximize=True, fused=True)",
        ),
    ],
)
def test_arguments_are_mapped(code: str, wanted: str) -> None:
    assert text_of(f"def f(m, lr: float):\n    return {code}\n") == wanted


def test_groups_of_parameters_are_kept() -> None:
    code = """
def f(decayed, others, lr):
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others}]
    return torch.optim.AdamW(groups, lr=lr)
"""
    assert text_of(code) == "torch.optim.AdamW(groups, lr=lr, fused=True)"


def test_names_of_imports_are_followed() -> None:
    code = "from torch.optim import AdamW\ndef f(m):\n    return AdamW(m.parameters(), lr=2e-5)\n"
    rewrite = the_site(code).rewrite
    assert rewrite is not None
    assert "fused=True" in rewrite.direct


@pytest.mark.parametrize(
    "code",
    [
        "from bitsandbytes.optim import AdamW\ndef f(m):\n    return AdamW(m.parameters())\n",
        "from apex.optimizers import FusedAdam\ndef f(m):\n    return FusedAdam(m.parameters())\n",
        "from deepspeed.ops.adam import FusedAdam as AdamW\ndef f(m):\n    return AdamW(m)\n",
        "def f(m, kind):\n    return getattr(torch.optim, kind)(m.parameters())\n",
        "def f(m, kinds):\n    return kinds['AdamW'](m.parameters())\n",
        "class AdamW(torch.optim.Optimizer): ...\ndef f(m):\n    return AdamW(m.parameters())\n",
        "def f(m):\n    return torch.optim.Adam(m.parameters(), capturable=True)\n",
        "def f(m):\n    return torch.optim.SGD(m.parameters(), lr=1.0, fused=True)\n",
        "def f(m):\n    return torch.optim.SparseAdam(m.parameters())\n",
        "def f(*args):\n    return torch.optim.Adam(*args)\n",
    ],
)
def test_other_optimizers_are_left_alone(code: str) -> None:
    assert list(find_sites(HEADER + code, [fused_optimizer.RULE])) == []


def test_every_open_condition_of_a_combined_optimizer_is_named() -> None:
    assert open_names(
        "def f(m, d):\n    return torch.optim.Adam(m.parameters(), weight_decay=d)\n"
    ) == {
        "float32-or-float16-parameters",
        "kept-gradients",
        "kept-parameters",
        "gradients-for-all-parameters",
        "unsharded-parameters",
    }


LOOP = """
def train(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    for batch in batches:
        model(batch).backward()
        optimizer.step()
        {zero}
"""


@pytest.mark.parametrize(
    ("zero", "kept"),
    [
        ("optimizer.zero_grad()", True),
        ("optimizer.zero_grad(set_to_none=False)", True),
        ("optimizer.zero_grad(True)", False),
        ("pass", False),
    ],
)
def test_gradients_are_kept_where_all_calls_say_so(zero: str, *, kept: bool) -> None:
    assert ("kept-gradients" not in open_names(LOOP.format(zero=zero))) == kept


@pytest.mark.parametrize(
    "zero", ["optimizer.zero_grad(set_to_none=True)", "model.zero_grad()", "self.q_net.zero_grad()"]
)
def test_gradients_that_become_none_are_not_combined(zero: str) -> None:
    assert list(find_sites(HEADER + LOOP.format(zero=zero), [fused_optimizer.RULE])) == []


def test_no_gradients_are_combined_where_some_are_taken_away() -> None:
    loop = LOOP.format(zero="optimizer.zero_grad()")
    taking = loop.replace(
        "        optimizer.step",
        "        utils.cancel_gradients_last_layer(0, model)\n        optimizer.step",
    )
    assert list(find_sites(HEADER + taking, [fused_optimizer.RULE])) == []


def test_a_grad_scaler_decides_how_adamw_is_fused() -> None:
    loop = LOOP.replace("Adam(", "AdamW(").format(zero="optimizer.zero_grad()")
    assert open_names(loop) == {"parameters-on-npu"}
    assert text_of(loop).endswith("fused=True)")
    scaled = f"from torch.cuda.amp import GradScaler\n{loop}"
    wanted = "torch_npu.optim.NpuFusedAdamW(model.parameters(), weight_decay=0.1)"
    assert text_of(scaled) == wanted


def test_without_its_training_loop_a_module_cannot_tell_about_scalers() -> None:
    code = "def configure(self):\n    return torch.optim.AdamW(self.parameters(), lr=self.lr)\n"
    assert open_names(code) == {"no-grad-scaler", "parameters-on-npu"}


@pytest.mark.parametrize(
    ("params", "plain"),
    [
        ("list(m.a.parameters()) + [*m.b.parameters()]", True),
        ("[p for n, p in m.named_parameters() if p.requires_grad]", True),
        ("[{'params': m.parameters(), 'lr': decay}]", True),
        ("[{'params': m.parameters(), 'weight_decay': decay}]", False),
        ("[n for n, p in m.named_parameters()]", False),
        ("joined", True),
        ("split", False),
        ("handed", False),
    ],
)
def test_parameters_one_by_one_bring_no_decay(params: str, *, plain: bool) -> None:
    code = f"""
def f(m, decay, handed, weight_decay):
    joined = []
    for part in m.parts:
        joined.extend(list(part.parameters()))
    for p in m.head.parameters():
        joined.append(p)
    torch.nn.utils.clip_grad_norm_(joined, 1.0)
    split = list(m.parameters())
    decay_some(split, weight_decay)
    return torch.optim.Adam({params}, lr=1e-3)
"""
    assert ("AdamW(" in text_of(code)) is plain


@pytest.mark.parametrize(
    ("head", "fewer"), [("", True), ("from transformers import Accelerator", False)]
)
def test_who_trains_alone_has_whole_parameters_of_single_precision(
    head: str, *, fewer: bool
) -> None:
    loop = LOOP.format(zero="optimizer.zero_grad()")
    asked = {"float32-or-float16-parameters", "unsharded-parameters"}
    assert open_names(f"{head}\n{loop}").isdisjoint(asked) is fewer
    assert "float32-or-float16-parameters" in open_names(f"m.to(torch.bfloat16)\n{loop}")


def test_sharded_parameters_are_not_combined() -> None:
    code = "from torch.distributed.fsdp import fully_shard\ndef f(m):\n    return {}\n"
    adam = code.format("torch.optim.Adam(m.parameters(), weight_decay=0.1)")
    assert list(find_sites(HEADER + adam, [fused_optimizer.RULE])) == []
    assert text_of(code.format("torch.optim.AdamW(m.parameters())")).endswith("fused=True)")


def test_a_learning_rate_that_is_a_tensor_is_left_alone() -> None:
    code = "def f(m):\n    return torch.optim.AdamW(m.parameters(), lr=torch.tensor(0.1))\n"
    assert list(find_sites(HEADER + code, [fused_optimizer.RULE])) == []


def test_an_optimizer_of_a_script_is_found() -> None:
    code = "model = torch.nn.Linear(2, 2)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    assert text_of(code) == "torch_npu.optim.NpuFusedSGD(model.parameters(), lr=0.1)"


# --- cross entropy and products


@pytest.mark.parametrize(
    "call",
    [
        "F.cross_entropy(x, y, ignore_index=0)",
        "F.cross_entropy(x, y, weight)",
        "F.cross_entropy(x, y, label_smoothing=0.1)",
        "F.cross_entropy(x, y, reduction=weight)",
        "F.nll_loss(x, y)",
        "F.binary_cross_entropy(x, y)",
        "F.cross_entropy(x.view(2, 3, 4), y)",
        "F.cross_entropy(x, y.view(2, 3))",
        "F.cross_entropy(x, y.float())",
    ],
)
def test_other_losses_are_left_alone(call: str) -> None:
    code = f"{HEADER}def f(x, y, weight):\n    return {call}\n"
    assert list(find_sites(code, [eager_cross_entropy.RULE])) == []


def test_labels_of_padding_are_a_named_condition() -> None:
    code = "def f(x, y):\n    return F.cross_entropy(x.view(-1, 9).float(), y.view(-1).long())\n"
    rule = eager_cross_entropy.RULE
    assert open_names(code, rule) == {"at-most-200000-rows", "no-ignored-labels"}
    assert text_of(code, rule).endswith("[0][0]")
    assert "no-autocast" in open_names(
        "def f(x, y):\n    with torch.autocast('npu'):\n        return F.cross_entropy(x, y)\n",
        rule,
    )


def test_spelled_out_defaults_are_the_default() -> None:
    code = "def f(x, y):\n    return F.cross_entropy(input=x, target=y, reduction='mean')\n"
    assert text_of(code, eager_cross_entropy.RULE).endswith("[0][0]")


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("2.0 * (a @ b) + 0.5 * c", "torch.addmm(c, a, b, beta=0.5, alpha=2.0)"),
        ("c * 0.5 + torch.mm(a, b)", "torch.addmm(c, a, b, beta=0.5)"),
        ("torch.mm(a, b) * s + c * -1.5", "torch.addmm(c, a, b, beta=-1.5, alpha=s)"),
        ("torch.matmul(a, b) * 3 + c", "torch.addmm(c, a, b, alpha=3)"),
        ("c + (2.0 * a) @ b", "torch.addmm(c, a, b, alpha=2.0)"),
        ("0.5 * c + 2.0 * a @ b", "torch.addmm(c, a, b, beta=0.5, alpha=2.0)"),
    ],
)
def test_scaled_products_in_any_order(expression: str, wanted: str) -> None:
    code = f"def f(a, b, c, s: float):\n    return {expression}\n"
    assert text_of(code, scaled_matmul_add.RULE) == wanted
    assert the_site(code, scaled_matmul_add.RULE).safety is Safety.CONDITIONAL


@pytest.mark.parametrize(
    "expression",
    [
        "c + a @ b",
        "0 * c + a @ b",
        "c + c.mean() * (a @ b)",
        "c - 2.0 * (a @ b)",
        "c + (c * a) @ b",
    ],
)
def test_other_sums_are_left_alone(expression: str) -> None:
    code = f"{HEADER}def f(a, b, c):\n    return {expression}\n"
    assert list(find_sites(code, [scaled_matmul_add.RULE])) == []


def test_a_product_of_shapes_that_are_known_needs_no_condition_but_the_dtype() -> None:
    code = """
def f(x: torch.Tensor, y: torch.Tensor):
    a, b, c = x.view(4, 5), y.view(5, 6), x.view(4, 6)
    return 0.5 * c + 2.0 * (a @ b)
"""
    assert open_names(code, scaled_matmul_add.RULE) <= {"same-dtype"}


@pytest.mark.parametrize(
    ("parameters", "count"),
    [("[log_alpha]", 0), ("[log_alpha.exp()]", 0), ("model.parameters()", 1), ("list(model)", 1)],
)
def test_one_number_is_no_model(parameters: str, count: int) -> None:
    code = (
        "import torch\n\n\ndef build(model, device):\n"
        "    log_alpha = torch.zeros(1, requires_grad=True, device=device)\n"
        f"    return torch.optim.Adam({parameters}, lr=1e-3), log_alpha\n"
    )
    assert len(list(find_sites(code, [fused_optimizer.RULE]))) == count


def test_the_steps_of_a_base_class_are_seen_in_the_module_that_it_comes_from() -> None:
    base = HEADER + (
        "class Trainer:\n"
        "    def train_step(self, batch):\n"
        "        self.optimizer.zero_grad(set_to_none=True)\n"
        "        self.network(batch).backward()\n"
        "        self.optimizer.step()\n"
    )
    own = (
        "from {}base import Trainer\n\n"
        "class CosineTrainer(Trainer):\n"
        "    def configure_optimizers(self):\n"
        "        return torch.optim.SGD(self.network.parameters(), 0.1, momentum=0.9)\n"
    )
    for dots in (".", "package."):
        code = HEADER + own.format(dots)
        known = {f"{dots}base": base}.get
        assert list(find_sites(code, [fused_optimizer.RULE], neighbour=known)) == []
        assert list(find_sites(code, [fused_optimizer.RULE])) != []
