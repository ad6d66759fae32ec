"""What a search writes looks as if the authors of the file had written it."""

from __future__ import annotations

import pytest
from rewriting_snippets import direct, sites, written

from npufix.rewriters.edit.layout import fit, use_width


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        # one call says dtype and device
        ("torch.zeros(n, 2).type_as(x)", "x.new_zeros(n, 2)"),
        ("torch.ones((n, 2)).to(x)", "x.new_ones((n, 2))"),
        ("torch.full((n,), 2.0).type_as(x)", "x.new_full((n,), 2.0)"),
        ("torch.zeros(n).to(dtype=x.dtype, device=x.device)", "x.new_zeros(n)"),
        (
            "(\n                torch.arange(n)\n                .to(x.device)\n            ) * 2",
            "(\n        torch.arange(n, device=x.device)\n    ) * 2",
        ),
        # another dtype on the way, and numbers that are computed
        (
            "torch.zeros(n, dtype=torch.bool).type_as(x)",
            "torch.zeros(n, dtype=torch.bool, device=x.device).type_as(x)",
        ),
        (
            "(torch.arange(n) * 2).type_as(x)",
            "(torch.arange(n, device=x.device) * 2).type_as(x)",
        ),
        # brackets that nothing needs any more
        ("(torch.ones(n) * 2).to(x.device)", "torch.ones(n, device=x.device) * 2"),
        (
            "torch.relu((torch.ones(n) * 2).to(x.device))",
            "torch.relu(torch.ones(n, device=x.device) * 2)",
        ),
        ("x * (torch.ones(n) + 2).to(x.device)", "x * (torch.ones(n, device=x.device) + 2)"),
    ],
)
def test_what_is_made_on_the_device_is_as_short_as_can_be(made: str, expected: str) -> None:
    text = f"""
        def forward(x: torch.Tensor):
            n = x.shape[0]
            return {made}
    """
    assert f"return {expected}\n" in direct(text, "NPU212")


def test_a_statement_that_has_become_too_long_is_broken() -> None:
    call = "g(\n        x, y, [1,\n        2], z='a, b',\n    )"
    old = f"def f(x, y):\n    out = {call}.h(x)\n    return out\n"
    new = old.replace(".h(x)", f".h(x, {'w' * 40})")
    before = old.splitlines(keepends=True)
    with use_width(40):
        assert fit(new, before, "    ") == new  # nothing makes it fit
    with use_width(51):
        assert fit(new, before, "    ") == (
            "def f(x, y):\n    out = g(x, y, [1, 2], z='a, b').h(\n"
            f"        x, {'w' * 40}\n    )\n    return out\n"
        )


@pytest.mark.parametrize(
    "statement",
    [
        "x = f(a,  # why\n    bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, cccccccccccccccccc)",
        'x = f("""a\nb""", bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, cccccccccccccccccc)',
    ],
)
def test_comments_and_long_texts_stay_where_they_are(statement: str) -> None:
    with use_width(20):
        assert fit(f"{statement}\n", [], "    ") == f"{statement}\n"


def test_what_was_as_long_before_stays() -> None:
    line = "x = f(aaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbb)\n"
    with use_width(30):
        assert fit(f"{line}y = 1\n", [line], "    ") == f"{line}y = 1\n"


def test_a_file_that_says_nothing_of_its_width_gets_that_of_black() -> None:
    for length, lines in ((84, 1), (90, 3)):
        line = f"x = f(a, {'b' * (length - 10)})\n"
        assert fit(line, ["x = f(a)\n"], "    ").count("\n") == lines


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("[n.item() for n in sizes]", "torch.stack(x).tolist()"),
        ("[n.cpu() for n in x]", "x = x.cpu()"),
    ],
)
def test_what_is_read_in_a_loop_decides_how_it_is_read_at_once(code: str, said: str) -> None:
    text = f"""
        def forward(x: torch.Tensor):
            sizes = [torch.relu(x).sum() for _ in range(4)]
            return {code}
    """
    assert [said in site.problem for site in sites(text, "NPU214")] == [True]


def test_elements_of_a_tensor_are_read_at_once_those_of_a_list_are_not() -> None:
    text = """
        def forward(x: torch.Tensor):
            sizes = [torch.relu(x).sum() for _ in range(4)]
            return [n.item() for n in {}]
    """
    read = [site.rewrite for site in sites(text.format("x"), "NPU214")]
    assert [one and one.text for one in read] == ["x.tolist()"]
    assert [site.rewrite for site in sites(text.format("sizes"), "NPU214")] == [None]


def test_masks_of_any_rank_are_aligned_in_one_line_or_not_at_all() -> None:
    text = """
        def f({0}: torch.Tensor, mask: torch.BoolTensor):
            {0}[mask] = 0
    """
    aligned = "x.masked_fill_(mask.view(mask.shape + (1,) * (x.dim() - mask.dim())), 0)"
    assert aligned in direct(text.format("x"), "NPU201")
    assert f"{'y' * 9}.masked_fill_(mask, 0)" in direct(text.format("y" * 9), "NPU201")
    header = "import torch\nfrom einops import rearrange\n"
    assert "x.masked_fill_(mask, 0)" in direct(text.format("x"), "NPU201", header=header)


def test_loops_become_short_statements() -> None:
    text = """
        def forward(self, keypoints: torch.Tensor, size: int):
            counts = torch.zeros(size, dtype=torch.int32, device=keypoints.device)
            for k in range(size):
                counts[k] = (keypoints[:, 0] == k).sum()
            return counts
    """
    assert direct(text, "NPU250").splitlines()[3:5] == [
        "    rows = torch.arange(size, dtype=keypoints.dtype, device=keypoints.device)",
        "    counts[:] = (keypoints[:, 0].flatten() == rows.unsqueeze(1)).sum(dim=1)",
    ]
    text = """
        def forward(self, x: torch.Tensor, count: int):
            padded = torch.zeros(4, 128, 3, device=x.device)
            for i in range(count):
                padded[:, i * self.proxy_points : (i + 1) * self.proxy_points, -1] = i * 0.1
            return padded
    """
    assert "    pieces = padded[:, :count * self.proxy_points, -1]" in direct(text, "NPU250")
    assert "    pieces[:] = rows.unsqueeze(1) * 0.1\n" in direct(text, "NPU250")
    # the last piece is what is left: no whole one
    text = """
        def forward(self, x: torch.Tensor):
            n = x.shape[0] // 50
            return torch.cat([self.net(x[i * 50 : (i + 1) * 50]) for i in range(n + 1)])
    """
    assert not written(sites(text, "NPU250"))


def test_an_argument_more_gets_a_line_below_the_others() -> None:
    text = """
        class A(nn.Module):
            def __init__(self):
                super().__init__()
                self.attend = nn.MultiheadAttention(8, 2)

            def forward(self, query, key, padding_of_the_keys, mask_of_what_is_attended):
                return self.attend(query, key,
                                   value=key,
                                   key_padding_mask=padding_of_the_keys, attn_mask=mask_of_what_is_attended)[0]
    """  # noqa: E501 - a long line is what it is about
    pad = " " * 27
    assert f"attended,\n{pad}need_weights=False)[0]\n" in direct(text, "NPU165")


def test_a_call_keeps_its_keywords() -> None:
    text = """
        def build(self, groups):
            return torch.optim.{}(params=self.net.parameters(), lr=1e-3)
    """
    alone = "AdamW(\n        params=self.net.parameters(), lr=1e-3, weight_decay=0, fused=True"
    assert alone in direct(text.format("Adam"), "NPU112")
    text = text.replace("lr=1e-3", "lr=1e-3, weight_decay=0.1")
    given = "params=self.net.parameters(), lr=1e-3, weight_decay=0.1"
    call = f"torch.optim.AdamW(\n        {given}, fused=True"
    assert call in direct(text.format("AdamW"), "NPU112")
    (site,) = written(sites(text.format("Adam"), "NPU112"))
    assert site.rewrite is not None
    assert f"return adam_class({given})" in site.rewrite.portable
    text = """
        def build(net, rate, scaler: torch.cuda.amp.GradScaler):
            return torch.optim.AdamW(net.parameters(), rate, betas=(0.8, 0.99))
    """
    (site,) = written(sites(text, "NPU112"))
    assert site.rewrite is not None
    assert "return adamw_class(net.parameters(), rate, betas=(0.8, 0.99))" in site.rewrite.portable


def test_a_statement_of_several_lines_is_broken_anew_where_it_gets_too_long() -> None:
    text = """
        class Attention(nn.Module):
            def forward(self, q: torch.Tensor, keys, values, number_of_queries):
                scores = (q @ keys.transpose(-2, -1)) * self.head_dim**-0.5
                attention = torch.softmax(scores, dim=-1)
                out = (
                    (attention @ values)
                    .transpose(1, 2)
                    .reshape(1, number_of_queries, self.embed_dim)
                )
                return out
    """
    lines = direct(text, "NPU104").splitlines()
    assert max(map(len, lines)) <= 89
    assert any("scaled_dot_product_attention(" in line for line in lines)


@pytest.mark.parametrize(
    "loop",
    [
        # a tensor of exponents, five dimensions, and pieces that nothing is computed of
        "y = 0\n            for i in range(self.order):\n                y = y + x**i",
        "y = torch.cat([x[None, None] + i for i in range(4)], dim=2)",
        "y = torch.stack([x[:, i * n : (i + 1) * n] for i in range(4)])",
    ],
)
def test_loops_that_are_better_left_alone(loop: str) -> None:
    text = f"""
        def forward(self, x: torch.Tensor, n: int):
            a, b, c = x.shape
            {loop}
            return y
    """
    assert not written(sites(text, "NPU250"))


def test_a_list_is_not_of_the_device_because_its_name_is_one_later() -> None:
    text = """
        def forward(x: torch.Tensor, tokens, fill):
            weights = [[1.0] * len(token) for token in tokens]
            tokens, weights = fill(tokens, weights)
            tokens = torch.relu(torch.tensor(tokens, device=x.device))
            return x * tokens * torch.tensor(weights, device=x.device)
    """
    said = [site.problem for site in sites(text, "NPU219")]
    assert not any("copies them back" in problem for problem in said)


@pytest.mark.parametrize(("device", "count"), [("", 0), (", device=x.device", 1)])
def test_one_number_of_the_host_is_as_good_in_each_round(device: str, count: int) -> None:
    text = f"""
        def forward(x: torch.Tensor):
            for _ in range(3):
                x = torch.log(x) / torch.log(torch.tensor(10.0{device}))
            return x
    """
    assert len(sites(text, "NPU216")) == count


def test_the_other_arguments_of_a_call_stay_as_they_are() -> None:
    old = "def f(x, m):\n    run(\n        {},\n        [\n            m,\n        ],\n    )\n"
    new, width = old.format("full((1,), x, device=x.device)"), 32
    with use_width(width):
        text = fit(new, old.format("tensor([x])").splitlines(keepends=True), "    ")
    assert text == old.format(
        "full(\n            (1,), x,\n            device=x.device,\n        )"
        if "(1,), x,\n" in text
        else "full(\n            (1,),\n            x,\n            device=x.device,\n        )"
    )
    assert max(map(len, text.splitlines())) <= width


def test_arguments_that_fill_a_line_get_one_each() -> None:
    made = "torch.cat((\n        {0},\n        ones(\n            {1}\n        )\n    ), dim=-1)\n"
    old = f"def f(x):\n    return {made}"
    short, long = "*x.shape, 1, dtype=int", "*x.shape, 1, dtype=int, device=x.device"
    each = ",\n            ".join([*long.split(", "), ""]).rstrip()
    with use_width(40):
        text = fit(old.format("x", long), [old.format("x", short)], "    ")
    assert text == old.format("x", each)


def test_lines_of_a_call_stay_where_arguments_come_or_its_name_changes() -> None:
    text = """
        def build(net, args):
            adam = torch.optim.Adam(net.parameters(),
                                    lr=args.lr, eps=args.eps,
                                    weight_decay=args.decay)
            adamw = torch.optim.AdamW(net.parameters(), lr=args.lr,
                                      weight_decay=args.decay)
            return adam, adamw
    """
    adam, adamw = written(sites(text, "NPU112"))
    assert adam.rewrite is not None
    assert adamw.rewrite is not None
    pad = " " * len("    adam = adam_class(")
    call = f"adam = adam_class(net.parameters(),\n{pad}lr=args.lr, eps=args.eps,\n{pad}weight_decay"
    assert call in adam.rewrite.portable
    pad = " " * len("    adamw = torch.optim.AdamW(")
    call = f"lr=args.lr,\n{pad}weight_decay=args.decay,\n{pad}fused=True)\n    return"
    assert call in adamw.rewrite.direct


def test_a_comment_stays_with_the_argument_before_it() -> None:
    text = """
        from torch.utils.data import DataLoader

        def train(data, collate):
            loader = DataLoader(
                data,
                batch_size=8,
                num_workers=8,
                shuffle=True,  # of the whole set
            )
            for batch in loader:
                step(batch)
    """
    assert "shuffle=True,  # of the whole set\n        pin_memory=True," in direct(text, "NPU270")
