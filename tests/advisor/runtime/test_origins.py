"""Which argument of a function its tables of cosines came from."""

from __future__ import annotations

import ast
import textwrap

import pytest

from npufix.advisor.runtime.calls.origins import keep_given

_OPERANDS: dict[str, ast.expr] = {
    "cos": ast.Name("cos"),
    "sin": ast.Name("sin"),
    "x": ast.Name("q"),
}


def asked(body: str, arguments: str = "q, cos, sin, position_ids=None") -> tuple[str, str]:
    text = f"def f({arguments}):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    found = keep_given(function, _OPERANDS)
    keep_given(function, _OPERANDS)  # for another place of the same function
    ast.fix_missing_locations(function)
    said = ", ".join(f"{name}={ast.unparse(code)}" for name, code in found.items())
    return said, ast.unparse(function.body[0])


@pytest.mark.parametrize(
    "body",
    [
        "cos = cos.unsqueeze(1)\nsin = sin.unsqueeze(1)",
        "cos, sin = cos[position_ids].to(q.dtype), sin[position_ids].to(q.dtype)",
        "cos = torch.cat([cos, cos], dim=-1)\nsin = torch.cat((sin, sin), dim=-1)",
        "cos, _ = cos.chunk(2, -1)\nhalf, _ = sin.chunk(2, -1)\nsin = half.repeat(1, 2)",
        "if position_ids is not None:\n    cos = cos[position_ids]\nsin = sin.float()",
    ],
)
def test_through_steps_that_keep_values_the_argument_is_asked(body: str) -> None:
    said, first = asked(body)
    assert said == "given_cos=__npufix_given_cos, given_sin=__npufix_given_sin"
    assert first.startswith("__npufix_given_")


def test_an_argument_that_keeps_its_name_is_asked_itself() -> None:
    assert asked("return q") == ("given_cos=cos, given_sin=sin", "return q")
    body = "cos = table.unsqueeze(0)\nsin = other.unsqueeze(0)\nreturn q"
    found = asked(body, "q, table, other")
    assert found == ("given_cos=table, given_sin=other", "cos = table.unsqueeze(0)")


@pytest.mark.parametrize(
    "body",
    [
        "cos = cos * 2",
        "cos = cos.unsqueeze(1)\ncos *= 2",
        "cos = cos.float()\ncos.mul_(2)",
        "cos = cos.float()\ncos[0] = 2",
        "cos = cos.float()\ntorch.mul(cos, 2, out=cos)",
        "cos = scaled(cos)",
        "for cos in q:\n    pass",
        "cos = torch.cat((cos, q), dim=-1)",
        "cos = position_ids.cos()",
        "cos, sin = q",
        "with q as cos:\n    pass",
        "cos = cos if q else 2 * cos",
        "(cos := 2 * cos)",
    ],
)
def test_what_may_change_values_leads_to_no_argument(body: str) -> None:
    assert asked(body)[0] == ""
