"""A mask is what the dump shows to be one, whatever it is called."""

from __future__ import annotations

import pytest

from npufix.rewriters.edit.site import Basis, Site
from npufix.rewriters.find import find_sites
from npufix.rewriters.match.recorded_call import RecordedCall
from npufix.rules.registry import all_rules

RULES = [rule for rule in all_rules() if rule.id in {"NPU201", "NPU210", "NPU211"}]
PUT = RecordedCall("aten::index_put_", ((4, 5), None, ()), ("float", "TensorList", "float"))
KERNEL = RecordedCall("IndexPutV2", ((4, 5), (1,)), ("float", "float"))


def code(line: str, parameters: str = "y, pad") -> str:
    return f"import torch\n\n\ndef f({parameters}):\n    {line}\n    return y\n"


def nonzero(name: str = "NonZero", dtype: str = "bool", *shape: int) -> RecordedCall:
    return RecordedCall(name, (shape or (4, 5),), (dtype,))


def sites(line: str, *calls: RecordedCall, parameters: str = "y, pad") -> list[Site]:
    return list(find_sites(code(line, parameters), RULES, {5: calls} if calls else None))


def bases(site: Site) -> dict[str, Basis]:
    return {proof.condition.name: proof.basis for proof in site.proofs}


@pytest.mark.parametrize("name", ["pad", "sel", "chosen", "index", "i"])
@pytest.mark.parametrize("asked", ["NonZero", "aten::nonzero"])
def test_positions_that_are_looked_for_beside_an_assignment_prove_a_mask(
    name: str, asked: str
) -> None:
    (site,) = sites(f"y[{name}] = 0.0", PUT, KERNEL, nonzero(asked), parameters=f"y, {name}")
    assert site.rule.id == "NPU201"
    assert bases(site)["boolean-mask"] is Basis.PROFILE
    assert not site.open_conditions
    assert site.rewrite is not None
    assert site.rewrite.text == f"y.masked_fill_({name}, 0.0)"


def test_the_recorded_shape_says_that_a_mask_is_one_of_rows() -> None:
    (site,) = sites("y[pad] = 0.0", PUT, KERNEL, nonzero("NonZero", "bool", 4))
    assert site.rewrite is not None
    assert site.rewrite.text == "y.masked_fill_(pad.unsqueeze(-1), 0.0)"
    assert not site.open_conditions


def test_kernels_alone_leave_open_only_what_they_do_not_show() -> None:
    (site,) = sites("y[pad] = 0.0", KERNEL, nonzero())
    assert bases(site)["boolean-mask"] is Basis.PROFILE
    assert bases(site)["is-tensor"] is Basis.PROFILE
    assert not site.open_conditions
    assert site.rewrite is not None
    assert site.rewrite.text == (
        "y.masked_fill_(pad.view(pad.shape + (1,) * (y.dim() - pad.dim())), 0.0)"
    )


@pytest.mark.parametrize(
    ("line", "calls"),
    [
        # Bytes are looked for like a mask, and masked_fill refuses them.
        ("y[pad] = 0.0", (PUT, KERNEL, nonzero(dtype="unsigned char"))),
        # Without shapes and dtypes it may be either.
        ("y[pad] = 0.0", (PUT, KERNEL, RecordedCall("NonZero", (), ("",)))),
        # Nobody knows which of the two looked for positions.
        ("y[pad] = y[rest].sum()", (PUT, KERNEL, nonzero())),
        ("y[pad] = 0.0", (PUT, KERNEL)),
        ("y[pad] = 0.0", ()),
    ],
)
def test_what_nothing_proves_is_conditional(line: str, calls: tuple[RecordedCall, ...]) -> None:
    (site,) = sites(line, *calls, parameters="y, pad, rest")
    assert "boolean-mask" in [c.name for c in site.open_conditions]


@pytest.mark.parametrize("name", ["idx", "index", "keep_idx", "ids", "inds", "indices"])
def test_a_name_that_speaks_of_positions_proves_nothing_and_is_asked_about(name: str) -> None:
    (site,) = sites(f"y[{name}] = 0.0", parameters=f"y, {name}")
    open_ = [condition.name for condition in site.open_conditions]
    assert open_[:2] == ["boolean-mask", "mask-despite-name"]
    # An IndexPut without a NonZero shows that its index is none.
    assert not sites(f"y[{name}] = 0.0", PUT, KERNEL, parameters=f"y, {name}")


@pytest.mark.parametrize(
    "body",
    [
        "idx = y.argsort(); y[idx] = 0.0",
        "y[idx] = 0.0; y = y.index_select(0, idx)",
        "y[idx] = y.sum()",
        "y[idx] = True",
    ],
)
def test_what_the_source_says_of_an_index_is_not_asked_about(body: str) -> None:
    found = sites(body, parameters="y, idx")
    assert all(site.rule.id != "NPU201" for site in found)


@pytest.mark.parametrize("name", ["i", "row", "layer_name", "start", "token_ids", "top_inds"])
def test_a_name_that_counts_is_no_mask_without_a_record(name: str) -> None:
    assert not sites(f"y[{name}] = 0.0", parameters=f"y: torch.Tensor, {name}")


def test_a_declared_number_is_no_mask() -> None:
    assert not sites("y[pad] = 0.0", parameters="y: torch.Tensor, pad: int")


def test_positions_that_were_asked_for_prove_nothing_about_the_index() -> None:
    found = sites(
        "y[ids.nonzero()] = 0.0", PUT, KERNEL, nonzero(dtype="long int"), parameters="y, ids"
    )
    assert not found
