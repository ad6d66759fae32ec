"""Calls of flash_attn and xformers, as the fused attention of torch_npu."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.layout import break_lines, style_of
from npufix.rewriters.edit.statements.attention.handed_ranks import find_rank
from npufix.rewriters.edit.statements.attention.held_functions import (
    find_function,
    list_imported_here,
)
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.surroundings import COMPREHENSIONS
from npufix.rewriters.edit.statements.vendor_operators import (
    beside,
    change_within,
    importing,
)
from npufix.rewriters.graph.modules.names import FunctionNode
from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_FLASH = (
    "torch_npu.npu_fusion_attention({0})[0]; with dropout keep_prob=1 - dropout_p; a causal call "
    "takes sparse_mode=3 and atten_mask=torch.triu(torch.ones(2048, 2048, dtype=torch.bool, "
    "device=q.device), diagonal=1)"
)
_WINDOW = (
    "; window_size=(left, right) takes sparse_mode=4, pre_tockens=left and next_tockens=right, "
    "with the same atten_mask"
)
_DENSE = 'q, k, v, q.shape[2], "BSND", scale=q.shape[-1] ** -0.5'
_PACKED_ROWS = (
    'q, k, v, q.shape[1], "TND", scale=q.shape[-1] ** -0.5, '
    "actual_seq_qlen=cu_seqlens_q[1:].tolist(), actual_seq_kvlen=cu_seqlens_k[1:].tolist()"
)
_BLOCKS = (
    'q[0], k[0], v[0], q.shape[2], "TND", scale=q.shape[-1] ** -0.5, '
    "actual_seq_qlen=list(itertools.accumulate(q_seqlen)), "
    "actual_seq_kvlen=list(itertools.accumulate(kv_seqlen))"
)
"""For ``BlockDiagonalMask.from_seqlens(q_seqlen, kv_seqlen)`` of xformers."""
_ADDED = (
    "torch_npu.npu_fusion_attention(q * q.shape[-1] ** -0.5, k, v, q.shape[2], 'BSND', "
    "pse=attn_bias)[0], a bias of (batch or 1, heads, queries, keys) in the dtype of q, which the "
    "kernel adds before it multiplies by a scale; with dropout keep_prob=1 - p. One that is 0 and "
    "-inf is better told as atten_mask, a mask that is True where the bias is -inf"
)
"""For a bias of xformers that is a tensor."""
_ATTENTIONS = re.compile(
    r"(flash_attn|flash_attention|flash_attn_interface)\."
    r"(?:\w+\.)*flash_attn_(varlen_|unpadded_)?(qkvpacked_|kvpacked_)?func"
)
_OF_XFORMERS = re.compile(r"xformers\.ops\.(?:fmha\.)?memory_efficient_attention")
_NAMES_OF_XFORMERS = {
    "query": "q", "key": "k", "value": "v", "attn_bias": "attn_bias", "p": "dropout_p",
    "scale": "softmax_scale",
}  # fmt: skip
"""Its arguments in their order, and what flash_attn calls them."""
_DIMS, _FOLDED = 4, 3
"""Of queries with a dimension for the heads, and of those whose batch holds the heads as well."""
_ONE_HEAD = 'q, k, v, 1, "BSH", scale=q.shape[-1] ** -0.5'
_WITHOUT_COUNTERPART = frozenset({"alibi_slopes", "softcap", "return_attn_probs"})
_CACHED = re.compile(
    r"(flash_attn|flash_attention|flash_attn_interface)\.(?:\w+\.)*flash_attn_with_kvcache"
)
_OF_CACHE = (
    "torch_npu.npu_fused_infer_attention_score(q, k_cache, v_cache, num_heads=heads, "
    "num_key_value_heads=kv_heads, input_layout='BSND', actual_seq_lengths_kv=lengths of the "
    "keys, block_table=block_table, block_size=block_size, scale=softmax_scale)[0] reads a cache "
    "of pages (blocks, block_size, kv_heads * size)"
)
_ROWS_OF_CACHE = (
    "torch_npu.npu_fused_infer_attention_score(q, k_cache, v_cache, num_heads=heads, "
    "num_key_value_heads=kv_heads, input_layout='TND', actual_seq_lengths=cu_seqlens_q[1:], "
    "actual_seq_lengths_kv=lengths of the keys, block_table=block_table, block_size=block_size, "
    "scale=softmax_scale)[0] reads a cache of pages (blocks, block_size, kv_heads * size); a "
    "causal call takes sparse_mode=3 and the compressed mask of 2048 x 2048 as atten_mask"
)
_SETTINGS = ("dropout_p", "softmax_scale", "causal")
_HELD = {"": ("q", "k", "v"), "kvpacked_": ("q", "kv"), "qkvpacked_": ("qkv",)}
_TRIANGLE = "torch.triu(torch.ones(2048, 2048, dtype=torch.bool, device={q}.device), diagonal=1)"


def find_flash_attention(here: Surroundings) -> Iterator[Proposal]:
    """Yield the calls of flash_attn and xformers, which have no kernels for the NPU."""
    if "npu_fusion_attention" in here.text(here.flow.function):
        return  # its author has chosen
    own = list_imported_here(here)
    for node in here.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = find_function(here, node.func, own)
        of_xformers, found = _OF_XFORMERS.fullmatch(called), _ATTENTIONS.fullmatch(called)
        if (of_xformers or found) and _is_one_of_two(here, node):
            continue
        if of_xformers and (form := _form_of_xformers(here, node)):
            yield _of_xformers(here, node, form)
        elif of_xformers and _adds_tensor(here, node):
            yield Proposal(node, _ADDED)
        words = {k.arg for k in node.keywords if not _is_setting_of_probabilities(k)}
        if (found and "block_table" in words) or _CACHED.fullmatch(called):
            yield Proposal(node, _ROWS_OF_CACHE if found else _OF_CACHE)
        elif found and not words & _WITHOUT_COUNTERPART:
            if _takes_parts(here, node) or _is_demanded(here, node.func):
                continue  # that of Hopper returned a pair once: ``[0]`` is no row
            rows, packed = bool(found[2]), found[3] or ""
            made = _proposal(here, node, _arguments(node, rows, packed), rows, packed)
            windowed = "window_size" in words and not made.changes
            yield replace(made, advice=made.advice + _WINDOW) if windowed else made


def _is_setting_of_probabilities(given: ast.keyword) -> bool:
    """Tell whether probabilities may be asked for: ``return_attn_probs=needed``."""
    plain = isinstance(given.value, ast.Constant) and given.value.value is True
    return given.arg == "return_attn_probs" and not plain


def _of_xformers(here: Surroundings, call: ast.Call, form: str) -> Proposal:
    """Return the fused call where no bias is given; ``op`` only chooses among kernels for GPUs."""
    given = dict(zip(_NAMES_OF_XFORMERS.values(), call.args, strict=False))
    words = {k.arg: k.value for k in call.keywords if k.arg != "op"}
    given |= {_NAMES_OF_XFORMERS.get(str(name), ""): value for name, value in words.items()}
    bias = given.pop("attn_bias", None)
    # its LowerTriangularMask begins with the first key, which ``sparse_mode=3`` does not
    biased = bias is not None and here.text(bias) != "None"
    rank = find_rank(here, given["q"]) if "q" in given else None
    if form == _DENSE and rank == _FOLDED:
        form = _ONE_HEAD
    if form == _BLOCKS or biased or len(call.args) > len(_NAMES_OF_XFORMERS):
        return Proposal(call, _FLASH.format(form))
    found = _proposal(here, call, given, rows=False, packed="", folded=rank == _FOLDED)
    known = {_DIMS: {"four-dimensional"}, _FOLDED: {"one-head-per-batch"}}.get(rank or 0, set())
    kind = "folded" if rank == _FOLDED else "efficient"
    return replace(found, form=kind, proven=found.proven | known)


def _form_of_xformers(here: Surroundings, call: ast.Call) -> str:
    """Return the arguments of the fused call, "" where a bias has no known counterpart."""
    given = [k.value for k in call.keywords if k.arg == "attn_bias"] or call.args[3:4]
    if not given or re.fullmatch(r"None|[\w.]*\bLowerTriangularMask\(\)", here.text(given[0])):
        return _DENSE  # which says what a causal call takes
    return _BLOCKS if "BlockDiagonal" in here.text(here.flow.function) else ""


def _adds_tensor(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether the bias of xformers is a tensor, or is one where it is not ``None``."""
    given = [k.value for k in call.keywords if k.arg == "attn_bias"] or call.args[3:4]
    if not given or not isinstance(given[0], ast.Name):
        return bool(given) and here.is_tensor(given[0]) is True
    made = [
        node.value
        for node in here.nodes
        if isinstance(node, ast.Assign) and here.text(node.targets[0]) == given[0].id
    ]
    others = [value for value in made if here.text(value) != "None"]
    return bool(others) and all(here.is_tensor(value) is True for value in others)


def _takes_parts(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether what a call returns is taken apart: ``attend(q, k, v)[0]``, ``x, lse = ...``."""
    match here.parents.get(id(call)):
        case ast.Subscript() | ast.Assign([ast.Tuple()]):
            return True
    return False


def _is_demanded(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether an NPU never comes by: ``assert flash_attn is not None``."""
    package = ast.unparse(code).partition(".")[0]
    asked = [package, "is", "not", "None"]
    return any(isinstance(n, ast.Assert) and here.text(n.test).split() == asked for n in here.nodes)


def _is_one_of_two(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether the author has the attention of torch as well, which an NPU has a kernel for.

    ``if mode == "flash": x = flash_attn_func(q, k, v)``, and another branch that runs without it;
    ``FlashAttention(Backend)`` beside ``TorchAttention(Backend)``.
    """
    branch = next((outer for outer in here.around(call) if isinstance(outer, ast.If)), None)
    if branch is not None and not _is_default(here, branch, call):
        arms = [[*walk(*arm)] for arm in (branch.body, branch.orelse)]
        own = {id(node) for arm in arms if any(n is call for n in arm) for node in arm}
        if any(is_of_torch(node) and id(node) not in own for node in here.nodes):
            return True
    others = [n for other in _classes_beside(here) for n in walk(other)]
    return any(map(is_of_torch, others)) or _is_dispatched(here)


def _is_dispatched(here: Surroundings) -> bool:
    """Tell whether a module calls the function where it may, and attention of torch where not.

    ``if HAS_FLASH and q.is_cuda: return flash(q, k, v)``, and behind it ``return plain(q, k, v)``
    with ``scaled_dot_product_attention``. Who offers the function by itself (``__all__``) has other
    modules call it without asking.
    """
    tree, own = here.flow.names.tree, here.flow.function
    if tree is None or here.flow.cls is not None or own.name in _list_offered(tree):
        return False
    functions = [n for n in tree.body if isinstance(n, FunctionNode) and n is not own]
    of_torch = {f.name for f in functions if any(map(is_of_torch, walk(f)))} - {own.name}
    return any(
        _calls(arm, {own.name})
        and any(
            is_of_torch(n) or _calls([n], of_torch)
            for n in walk(function)
            if not any(n is inner for inner in walk(*arm))
        )
        for function in functions
        for branch in walk(function)
        if isinstance(branch, ast.If)
        for arm in (branch.body, branch.orelse)
    )


def _list_offered(tree: ast.Module) -> set[object]:
    """Return what ``__all__`` of a module names."""
    for statement in tree.body:
        match statement:
            case ast.Assign([ast.Name("__all__")], ast.List(names) | ast.Tuple(names)):
                return {getattr(name, "value", None) for name in names}
    return set()


def _calls(code: Sequence[ast.AST], names: set[str]) -> bool:
    calls = (n.func for n in walk(*code) if isinstance(n, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in names for called in calls)


def _is_default(here: Surroundings, branch: ast.If, call: ast.Call) -> bool:
    """Tell whether a call runs unless an argument says otherwise: ``mode="flash"``."""
    match branch.test:
        case ast.Compare(ast.Name(asked), [ast.Eq()], [ast.Constant(value)]):
            given = here.flow.function.args
            names = [*given.posonlyargs, *given.args][-len(given.defaults) or None :]
            pairs = [*zip(names, given.defaults, strict=False)]
            pairs += [(n, d) for n, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d]
            default = {n.arg: d for n, d in pairs}.get(asked)
            held = isinstance(default, ast.Constant) and default.value == value
            return held and any(node is call for node in walk(*branch.body))
    return False


def _classes_beside(here: Surroundings) -> Iterator[ast.ClassDef]:
    """Yield the other classes of a module that stand for the same: of its base, or in its table.

    ``MODES = {"softmax": Attention, "xformers": FlashAttention}``
    """
    cls, tree = here.flow.cls, here.flow.names.tree
    if cls is None or tree is None:
        return
    tables = [n for n in walk(tree) if isinstance(n, ast.Dict)]
    listed = [{last_name(v) for v in table.values if v is not None} for table in tables]
    beside = {name for names in listed if cls.name in names for name in names}
    bases = [ast.unparse(base) for base in cls.bases if not ast.unparse(base).endswith("Module")]
    for other in here.flow.names.classes.values():
        same = bases and [ast.unparse(base) for base in other.bases] == bases
        if other is not cls and (same or other.name in beside):
            yield other


def is_of_torch(node: ast.AST) -> bool:
    """Tell whether code calls the attention of torch."""
    return isinstance(node, ast.Call) and last_name(node.func) == "scaled_dot_product_attention"


def _proposal(  # noqa: PLR0913 - what the kinds of calls differ in
    here: Surroundings,
    call: ast.Call,
    given: dict[str, ast.expr],
    rows: bool,  # noqa: FBT001 - of a name
    packed: str,
    *,
    folded: bool = False,
) -> Proposal:
    """Return the fused call where every argument has a counterpart, else the advice."""
    advice = _FLASH.format(_PACKED_ROWS if rows else _ONE_HEAD if folded else _DENSE)
    held = [given.get(name) for name in _HELD[packed]]
    statement = here.statement_of(call)
    whole = here.whole_lines(statement)
    inner = (*COMPREHENSIONS, ast.Lambda)  # ``[flash_attn_func(x, x, x) for x in q]``
    if (
        given.pop("", None)
        or not all(isinstance(h, ast.Name | ast.Attribute) for h in held)
        or whole is None
        or not isinstance(statement, ast.Assign | ast.Return | ast.Expr)
        or any(isinstance(outer, inner) for outer in here.around(call))
    ):
        return Proposal(call, advice)
    texts = [here.text(h) for h in held if h is not None]
    asked = texts[0]
    middle = ", " if rows else ", :, "
    if packed:
        parts = range(2 if len(texts) > 1 else 3)
        texts[-1:] = [f"{texts[-1]}[:{middle}{n}]" for n in parts]
    heads = "1" if folded else f"{texts[0]}.shape[{1 if rows else 2}]"
    passed = [*texts, heads, '"TND"' if rows else '"BSH"' if folded else '"BSND"']
    more = _settings(here, given, texts[0], rows=rows)
    if more is None:
        return Proposal(call, advice)
    indent = here.indent(statement)
    end = "\r\n" if here.lines[0].endswith("\r\n") else "\n"
    room = style_of("".join(here.lines)).width - len(indent) - 5
    every = (break_lines(argument, room, "    ").split("\n") for argument in (*passed, *more))
    lines = "".join(f"{indent}    {line}{end}" for argument in every for line in _close(argument))
    change = Change(here.span(call), f"torch_npu.npu_fusion_attention({end}{lines}{indent})[0]")
    drops = any(argument.startswith("keep_prob") for argument in more)
    return Proposal(
        call,
        changes=(change, *importing(here, "torch_npu")),
        elsewhere=beside(here, whole, change_within(here, whole, change), asked, "torch_npu"),
        shown=change.text,
        asked=(("q", texts[0]),),
        proven=frozenset() if drops else frozenset({"other-random-numbers"}),
    )


def _close(argument: Sequence[str]) -> list[str]:
    """Return the lines of ``name=value`` with a comma behind the last."""
    first = re.sub(r"^(\w+)= ", r"\1=", argument[0])
    return [*[first, *argument[1:]][:-1], f"{argument[-1] if argument[1:] else first},"]


def _settings(
    here: Surroundings, given: Mapping[str, ast.expr], q: str, *, rows: bool
) -> list[str] | None:
    """Return the keywords of the fused call, ``None`` where one is not known."""
    drops, scale, causal = (given.get(name, ast.Constant(None)) for name in _SETTINGS)
    found = [f"scale={_scale(here, scale, q)}"]
    if not isinstance(drops, ast.Constant) or drops.value not in {None, 0.0}:
        dropped = here.text(drops)
        plain = isinstance(drops, ast.Name | ast.Attribute | ast.Constant)
        found.append(f"keep_prob=1.0 - {dropped if plain else f'({dropped})'}")
    mask = f"atten_mask={_TRIANGLE.format(q=q)}"
    if isinstance(causal, ast.Constant) and causal.value in {None, False, True}:
        found += [mask, "sparse_mode=3"] if causal.value else []
    elif isinstance(causal, ast.Name | ast.Attribute):
        asked = here.text(causal)
        found += [f"{mask} if {asked} else None", f"sparse_mode=3 if {asked} else 0"]
    else:
        return None
    if rows:
        of_q = given.get("cu_seqlens_q", given.get("cu_seqlens"))
        for name, starts in (("q", of_q), ("kv", given.get("cu_seqlens_k", of_q))):
            if not isinstance(starts, ast.Name | ast.Attribute):
                return None
            found.append(f"actual_seq_{name}len={here.text(starts)}[1:].tolist()")
    return found


def _arguments(call: ast.Call, rows: bool, packed: str) -> dict[str, ast.expr]:  # noqa: FBT001 - of a name
    """Return arguments by name; "" stands for one that is not known here."""
    places = ["cu_seqlens"] if packed == "qkvpacked_" else ["cu_seqlens_q", "cu_seqlens_k"]
    longest = [name.replace("cu_", "max_").replace("seqlens", "seqlen") for name in places]
    names = [*_HELD[packed], *((*places, *longest) if rows else ()), *_SETTINGS]
    found = dict(zip(names, call.args, strict=False))
    for keyword in call.keywords:
        harmless = keyword.arg == "deterministic" or (
            keyword.arg == "window_size" and ast.unparse(keyword.value) == "(-1, -1)"
        )
        harmless |= keyword.arg == "return_attn_probs" and ast.unparse(keyword.value) == "False"
        if not harmless:
            found[keyword.arg if keyword.arg in names else ""] = keyword.value
    if len(call.args) > len(names) or any(isinstance(a, ast.Starred) for a in call.args):
        found[""] = call
    return found


def _scale(here: Surroundings, given: ast.expr, q: str) -> str:
    """Return the factor of the scores: one over the root of the size of a head if none is given."""
    usual = f"{q}.shape[-1] ** -0.5"
    if isinstance(given, ast.Constant):
        return usual if given.value is None else here.text(given)
    text = here.text(given)
    if isinstance(given, ast.Name | ast.Attribute):
        return f"{usual} if {text} is None else {text}"
    return text
