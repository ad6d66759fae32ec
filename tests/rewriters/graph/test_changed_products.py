"""A product that is changed in place where nothing else sees it is a new value of its name."""

from __future__ import annotations

import pytest
from rewriting_snippets import direct, sites, written

ATTENTION = """
def attend(q, k, v, mask, p: float):
    scores = torch.matmul(q, k.transpose(-2, -1))
{}
    return scores.softmax(-1) @ v{}
"""


def attend(changes: str, also: str = "") -> str:
    lines = [f"    {line}" for line in changes.strip("\n").splitlines()]
    return ATTENTION.format("\n".join(lines), also)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ("scores /= 8.0", ", scale=1.0 / 8.0"),
        ("scores.mul_(0.125)", ", scale=0.125"),
        ("scores *= 0.5\nscores.masked_fill_(mask == 0, -1e9)", ", attn_mask=mask != 0, scale=0.5"),
        (
            "if mask is not None:\n    scores += mask",
            ", attn_mask=None if mask is None else mask == 0, scale=1.0",
        ),
    ],
)
def test_a_product_that_is_changed_in_place_is_part_of_an_attention(
    changes: str, options: str
) -> None:
    text = direct(attend(changes), "NPU104")
    assert f"F.scaled_dot_product_attention(q, k, v{options})" in " ".join(text.split()).replace(
        "( ", "("
    ).replace(" )", ")")
    assert "scores" not in text


@pytest.mark.parametrize(
    ("changes", "also"),
    [
        # another name of it
        ("kept = scores\nscores /= 8.0", ", kept"),
        # a part of its memory
        ("first = scores[0]\nscores /= 8.0", ", first"),
        # once per round
        ("for one in mask:\n    scores.masked_fill_(one, -1e9)", ""),
        ("while p > 1:\n    scores *= 0.5\n    p -= 1", ""),
        # somebody else may have kept it
        ("watch(scores)\nscores /= 8.0", ""),
        # in a list, in an object, in a function that is called later
        ("every = [scores]\nscores /= 8.0", ", every"),
        ("p.last = scores\nscores /= 8.0", ""),
        ("again = lambda: scores\nscores /= 8.0", ", again"),
        # the query itself
        ("q /= 8.0", ", q"),
    ],
)
def test_a_product_that_something_else_sees_is_written_to(changes: str, also: str) -> None:
    assert not written(sites(attend(changes, also), "NPU104"))


def test_what_is_added_in_place_is_no_expression_to_replace() -> None:
    code = "def f(x, weight, bias):\n    y = x @ weight\n    y += bias\n    return y\n"
    assert not sites(code, "NPU205")
