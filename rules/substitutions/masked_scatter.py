"""Rows written to where a mask says so, element by element.

What: ``x.masked_scatter(mask, rows)``, where the mask is one of rows: that of the places of an image in
a text, ``(ids == image_token).unsqueeze(-1).expand_as(embeddings)``; ``x.masked_scatter(mask, y[mask])``,
which is ``torch.where``.

Why it is slow on the NPU: MaskedScatter counts the elements of the mask one after the other, all
columns of each row, and for most dtypes on the AI CPU. The positions of the rows are as many times
fewer as a row has columns, and IndexPut copies whole rows.

Safety: the same rows at the same places, gradients included. The mask must be the same for all
columns (``mask-of-rows``), which is proven where it is expanded on the spot, and ``rows`` must have
exactly as many rows as the mask has (``as-many-rows``): ``masked_scatter`` ignores what is left over.

References: torch.Tensor.masked_scatter; torch.index_put; MindSpeed-MM, which writes the vision
features of Qwen models so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution, either

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def expanded(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """Write rows to where a mask of rows is true, through a mask of elements."""
    whole = either(mask.unsqueeze(-1).expand_as(x), mask.unsqueeze(-1))
    return x.masked_scatter(whole, rows)


def put_rows(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """Write rows to the positions of a mask of rows."""
    return x.index_put(mask.nonzero(as_tuple=True), rows.reshape(-1, x.shape[-1]))


def of_elements(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """Write elements to where a mask is true, which is the same in all columns."""
    return x.masked_scatter(mask, rows)


def put_first_column(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """Write rows to where the first column of the mask is true."""
    return x.index_put(
        mask[..., 0].nonzero(as_tuple=True),  # no slip: 0 is 1 (all columns are the same)
        rows.reshape(-1, x.shape[-1]),
    )


def selected(x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    """Write the elements of another tensor that the mask itself selects."""
    return x.masked_scatter(mask, y[mask])


def chosen(x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    """Choose element by element."""
    return torch.where(mask, y, x)


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return a batch of rows, a mask of them, and as many new rows."""
    import torch

    shape = draw.integer(1, 3), draw.integer(1, 4), 3
    mask = draw.booleans(*shape[:2])
    return {
        "x": draw.floats(*shape, dtype=torch.float32),
        "mask": mask,
        "rows": draw.floats(int(mask.sum()), 3, dtype=torch.float32),
    }


def element_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same with the mask of all elements."""
    given = row_inputs(draw)
    return {**given, "mask": given["mask"].unsqueeze(-1).expand_as(given["x"])}


def chosen_inputs(draw: Draw) -> dict[str, Any]:
    """Return two tensors and a mask of one shape."""
    import torch

    shape = draw.integer(1, 3), draw.integer(1, 4)
    return {
        "x": draw.floats(*shape, dtype=torch.float32),
        "mask": draw.booleans(*shape),
        "y": draw.floats(*shape, dtype=torch.float32),
    }


_MADE_FOR_IT = frozenset({"full_like", "new_zeros", "zeros", "zeros_like"})


def _of_rows(site: Site) -> bool | None:
    # ``x > 0`` differs from column to column, a mask of fewer dimensions has other columns, and
    # ``values.reshape(-1)`` are elements
    other = site.is_test_of("mask", "x") or site.same_ndim("x", "mask") is False
    other = other or site.ndim("rows") == 1
    # what is made on the spot has the shape of the mask: ``zeros(mask.shape)``, an element each
    other = other or site.operator("x").removesuffix("(*)") in _MADE_FOR_IT
    return False if other else None


MASK_OF_ROWS = Condition(
    "mask-of-rows",
    "the mask has the shape of the tensor and is the same in all columns",
    _of_rows,
)
SAME_SHAPE = Condition(
    "same-shape",
    "the mask and both tensors have one shape",
    lambda site: False if site.same_ndim("y", "mask") is False else None,
    meaning="one-shape",
)
AS_MANY_ROWS = Condition(
    "as-many-rows",
    "there are exactly as many rows to write as the mask has",
    lambda _site: None,
)

RULE = Substitution(
    id="NPU220",
    name="masked-scatter",
    summary="rows written element by element to where a mask says so",
    table="affinity",
    forms=(
        Form(selected, chosen, chosen_inputs, (SAME_SHAPE,)),
        Form(expanded, put_rows, row_inputs, (AS_MANY_ROWS,)),
        Form(of_elements, put_first_column, element_inputs, (MASK_OF_ROWS, AS_MANY_ROWS)),
    ),
    replaces=("MaskedScatter", "MaskedScatterWithPosition", "BroadcastTo", "Expand"),
    becomes=("IndexPutV2", "NonZero", "SelectV2"),
    passes=(2, 2),
    requires="torch_npu>=2.1",
    valid=(
        # chosen element by element
        """
def forward(x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor):
    return torch.where(mask, y, x) + x.masked_fill(mask, 0)
""",
        # an element each
        """
def forward(mask: torch.Tensor, found: torch.Tensor):
    return found.new_zeros(mask.shape).masked_scatter(mask, found)
""",
        # another mask in each column
        """
def forward(x: torch.Tensor, rows: torch.Tensor):
    return x.masked_scatter(x > 0, rows)
""",
        # elements, one for each place of the mask
        """
def forward(tokens: torch.Tensor, padded: torch.Tensor):
    mask = tokens[..., 0]
    return torch.zeros_like(mask).masked_scatter(mask, padded.reshape(-1))
""",
        # written in place
        """
def forward(x: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor):
    x.masked_scatter_(mask.unsqueeze(-1).expand_as(x), rows)
    return x
""",
        # other elements
        """
def forward(x: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor):
    return x.masked_fill(mask.unsqueeze(-1).expand_as(x), 0)
""",
        # selected, not written
        """
def forward(x: torch.Tensor, mask: torch.Tensor):
    return x.masked_select(mask)
""",
    ),
    rewritten=(
        Rewritten(
            """
def insert(tokens: torch.Tensor, predicted: torch.Tensor, unknown: int):
    missing = tokens.eq(unknown)
    return tokens.masked_scatter(missing, predicted[missing])
""",
            """
def insert(tokens: torch.Tensor, predicted: torch.Tensor, unknown: int):
    missing = tokens.eq(unknown)
    return torch.where(missing, predicted, tokens)
""",
        ),
        Rewritten(
            """
def merge(embeds: torch.Tensor, features: torch.Tensor, ids: torch.Tensor, token: int):
    special = (ids == token).unsqueeze(-1).expand_as(embeds)
    return embeds.masked_scatter(special, features)
""",
            """
def merge(embeds: torch.Tensor, features: torch.Tensor, ids: torch.Tensor, token: int):
    return embeds.index_put(
        (ids == token).nonzero(as_tuple=True), features.reshape(-1, embeds.shape[-1])
    )
""",
        ),
        Rewritten(
            """
def merge(embeds: torch.Tensor, features: torch.Tensor, image_mask: torch.Tensor):
    embeds = embeds.masked_scatter(image_mask, features)
    return embeds * 2
""",
            """
def merge(embeds: torch.Tensor, features: torch.Tensor, image_mask: torch.Tensor):
    embeds = embeds.index_put(
        image_mask[..., 0].nonzero(as_tuple=True),
        features.reshape(-1, embeds.shape[-1]),
    )
    return embeds * 2
""",
        ),
    ),
)
