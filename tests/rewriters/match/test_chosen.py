"""Where the fused operator stands beside the code, its author has chosen."""

from __future__ import annotations

import pytest
from rewriting_snippets import sites

from npufix.rewriters.find import find_sites

NORM = "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w"
NPU = "torch_npu.npu_rms_norm(x, w, 1e-6)[0]"

CHOSEN = {
    "what tells what it can do": f"""
        def f(x, w):
            if norm.is_fast:
                return norm(x, w)
            return {NORM}
    """,
    "a flag": f"""
        def f(x, w, args):
            if args.use_fused_rmsnorm:
                return {NPU}
            return {NORM}
    """,
    "a shape": f"""
        def f(x, w):
            if x.shape[-1] % 32 == 0:
                y = {NPU}
            else:
                y = {NORM}
            return y
    """,
    "a failure": f"""
        def f(x, w):
            try:
                y = {NPU}
            except RuntimeError:
                y = {NORM}
            return y
    """,
    "an expression": f"""
        def f(x, w, fast):
            return {NPU} if fast else {NORM}
    """,
    "a function": f"""
        def fused_norm(x, w):
            return {NPU}
        def unfused_norm(x, w):
            return {NORM}
    """,
    "a method": f"""
        class A:
            def forward_oot(self, x, w):
                return {NPU}
            def forward_native(self, x, w):
                return {NORM}
    """,
    "a part of the other method": f"""
        class A:
            def _norm(self, x, w):
                return {NORM}
            def unfused_norm(self, x, w):
                return self._norm(x, w) * 2
            def fused_norm(self, x, w):
                return {NPU} * 2
    """,
    "a name written in one word": f"""
        import torch_npu
        class A:
            def forward(self, x, w):
                if self.fast:
                    return self.fused_rmsnorm(x, w)
                return {NORM}
    """,
    "a class": f"""
        class NpuNorm:
            def forward(self, x, w):
                return {NPU}
        class EagerNorm:
            def forward(self, x, w):
                return {NORM}
    """,
    "a helper": f"""
        def helper(x, w):
            return {NPU}
        def f(x, w, fast):
            if fast:
                return helper(x, w)
            return {NORM}
    """,
    "an import": f"""
        try:
            import torch_npu
            def norm(x, w):
                return {NPU}
        except ImportError:
            def norm(x, w):
                return {NORM}
    """,
    "a relative": f"""
        def f(x, w, fast):
            if fast:
                return torch_npu.npu_gemma_rms_norm(x, w)[0]
            return {NORM}
    """,
}


@pytest.mark.parametrize("beside", ["scale_kernel", "scale", "scale_with_triton"])
def test_what_falls_back_is_left_alone(beside: str) -> None:
    code = f"""
        def {beside}(x):
            return torch_npu.npu_something(x)

        def scale_native(x, w):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    """
    assert sites(code, "NPU101") == []
    assert len(sites(code.replace(f"def {beside}(", "def other("), "NPU101")) == 1


LEFT = {
    "another way for some": f"""
        def f(x, w):
            if norm.is_whole:
                return norm(x)
            return {NORM}
    """,
    "another operator": f"""
        def f(x, w, fast):
            if fast:
                return torch_npu.npu_swiglu(x)
            return {NORM}
    """,
    "in another function": f"""
        def f(x, w):
            return {NPU}
        def g(x, w):
            return {NORM}
    """,
    "another class": f"""
        class A:
            def forward_npu(self, x, w):
                return {NPU}
        class B:
            def forward_native(self, x, w):
                return {NORM}
    """,
    "after it": f"""
        def f(x, w, more):
            y = {NORM}
            if more:
                y = torch_npu.npu_rms_norm(y, w, 1e-6)[0]
            return y
    """,
    "another fused kernel": f"""
        def f(x, w, apex):
            if apex:
                return apex.FusedLayerNorm(x, w)
            return {NORM}
    """,
}


@pytest.mark.parametrize("code", CHOSEN.values(), ids=CHOSEN)
def test_nothing_is_found_where_the_author_has_chosen(code: str) -> None:
    assert sites(code, "NPU101") == []


def test_a_norm_of_its_family_stands_beside_it() -> None:
    code = """
        class A(nn.Module):
            def forward(self, x):
                w = 1.0 + self.weight.float()
                if self.fused:
                    return torch_npu.npu_rms_norm(x.float(), w, 1e-6)[0].type_as(x)
                y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
                return (y * w).type_as(x)
    """
    assert sites(code, "NPU108") == []
    assert sites(code.replace("npu_rms_norm", "other"), "NPU108")


def test_what_stands_in_for_a_function_of_torch_is_no_finding_beside_it() -> None:
    code = f"""
        def f(x, w, new):
            if new:
                return torch.nn.functional.rms_norm(x, (8,), w, 1e-6)
            return {NORM}
    """
    assert ["functional" in site.code for site in sites(code, "NPU101")] == [True]


@pytest.mark.parametrize(("other", "count"), [("else", 0), ("if self.b", 1)])
def test_a_helper_that_is_called_instead_is_no_finding(other: str, count: int) -> None:
    code = f"""
        class Norm(nn.Module):
            def norm(self, x):
                return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

            def forward(self, x):
                if self.a:
                    x = torch.nn.functional.rms_norm(x, (8,), self.weight, 1e-6)
                {other}:
                    x = self.norm(x) + self.weight
                return x
    """
    assert len(sites(code, "NPU168")) == count


@pytest.mark.parametrize(("other", "count"), [("else", 0), ("if flags.b", 1)])
def test_a_function_that_is_called_instead_is_no_finding(other: str, count: int) -> None:
    code = f"""
        def _norm(x, w):
            return {NORM}

        def apply(x, w, flags):
            if flags.fused:
                x = {NPU}
            {other}:
                x = _norm(x, w)
            return x
    """
    assert len(sites(code, "NPU101")) == count


@pytest.mark.parametrize(("operator", "count"), [("npu_swiglu(x)", 0), ("npu_fast_gelu(x)", 1)])
def test_what_an_activation_of_the_configuration_is_says_the_other_branch(
    operator: str, count: int
) -> None:
    code = f"""
        class Experts(nn.Module):
            def __init__(self, config):
                self.act_fn = ACT2FN[config.hidden_act]

            def forward(self, x):
                if self.training:
                    return torch_npu.{operator}
                gate, up = x.chunk(2, dim=-1)
                return up * self.act_fn(gate)
    """
    assert len(sites(code, "NPU103")) == count
    assert not sites(code, "NPU110") or count


@pytest.mark.parametrize("code", LEFT.values(), ids=LEFT)
def test_what_stands_elsewhere_is_no_choice(code: str) -> None:
    assert len(sites(code, "NPU101")) == 1


def test_what_is_written_into_one_branch_is_no_choice_in_the_other() -> None:
    code = f"""
        def f(x, w, parts):
            if parts:
                y = {NORM}
            else:
                z = x * x * torch.rsqrt((x * x).pow(2).mean(-1, keepdim=True) + 1e-6) * w
                y = z + 1
            return y
    """
    both = sites(code, "NPU101")
    assert len(both) == 2
    for site in both:
        assert site.rewrite is not None
        assert len(list(find_sites(site.rewrite.portable, [site.rule]))) == 1
        assert len(list(find_sites(site.rewrite.direct, [site.rule], chosen_too=True))) == 1


@pytest.mark.parametrize(
    ("beside", "says", "left"),
    [
        ("NaiveAttention", "Compute it.", True),
        ("Attention", "Compute it.", False),
        ("Attention", "Naive implementation in PyTorch, for testing.", True),
    ],
)
def test_what_is_there_to_be_read_is_left_alone(beside: str, says: str, *, left: bool) -> None:
    code = f"""
class {beside}:
    def forward(self, x: torch.Tensor):
        return naive_clip(x)


def naive_clip(x: torch.Tensor):
    \"\"\"{says}\"\"\"
    x[x < 0] = 0
    return x
"""
    assert (sites(code) == []) is left


@pytest.mark.parametrize(
    ("made", "left"), [("NaiveClip()", False), ("NaiveClip() if naive else Clip()", True)]
)
def test_what_is_called_naive_may_be_all_there_is(made: str, *, left: bool) -> None:
    code = f"""
class NaiveClip(nn.Module):
    def forward(self, x: torch.Tensor):
        x[x < 0] = 0
        return x


class Layer(nn.Module):
    def __init__(self, naive):
        self.clip = {made}
"""
    assert (sites(code) == []) is left


@pytest.mark.parametrize(("other", "left"), [("apply", True), ("prepare", False)])
def test_what_only_a_fallback_calls_is_left_alone(other: str, *, left: bool) -> None:
    code = f"""
def clip(x: torch.Tensor):
    x[x < 0] = 0
    return x


class Rope:
    def apply_torch(self, x):
        return clip(x)

    def {other}(self, x):
        return ext.clip(x)
"""
    assert (sites(code) == []) is left
