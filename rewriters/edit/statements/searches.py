"""The searches by their names, and what becomes of what they find."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import extent, unit_of
from npufix.rewriters.edit.job import PROBE
from npufix.rewriters.edit.layout import fit
from npufix.rewriters.edit.rewrite import NotRewritableError
from npufix.rewriters.edit.site import Rewrite
from npufix.rewriters.edit.statements.attention.attention_in_pieces import (
    FUSED,
    find_attention_in_pieces,
)
from npufix.rewriters.edit.statements.attention.attention_weights import (
    find_masked_layers,
    find_unused_weights,
)
from npufix.rewriters.edit.statements.attention.biased_attention import BIAS, find_biased_attention
from npufix.rewriters.edit.statements.attention.flash_attention import find_flash_attention
from npufix.rewriters.edit.statements.checks import find_checks
from npufix.rewriters.edit.statements.columns import find_columns
from npufix.rewriters.edit.statements.handed_in import find_constants, find_handed_in
from npufix.rewriters.edit.statements.host.doubles import find_doubles
from npufix.rewriters.edit.statements.host.host_values import find_host_values
from npufix.rewriters.edit.statements.host.made.creations import find_creations
from npufix.rewriters.edit.statements.host.uploads import find_uploads
from npufix.rewriters.edit.statements.host.waits.device_waits import find_device_waits
from npufix.rewriters.edit.statements.linear.projections import (
    NAMES_ARE_FIXED,
    PROJECTED,
    find_projections,
)
from npufix.rewriters.edit.statements.linear.quantised import WIDENS, find_quantised_products
from npufix.rewriters.edit.statements.masked.formulas import find_masked_formulas
from npufix.rewriters.edit.statements.masked.sums import ADDED_UP, REDUCED, find_masked_values
from npufix.rewriters.edit.statements.mixtures.experts import (
    find_expert_loops,
    find_rows_of_masks,
)
from npufix.rewriters.edit.statements.mixtures.routers import find_routers
from npufix.rewriters.edit.statements.one_hot import find_scattered_products
from npufix.rewriters.edit.statements.products import find_einsum_products
from npufix.rewriters.edit.statements.programs import configured
from npufix.rewriters.edit.statements.programs.caches import (
    GROWS,
    WRITES,
    find_growing_caches,
    find_static_caches,
)
from npufix.rewriters.edit.statements.programs.clipping import find_clipping
from npufix.rewriters.edit.statements.programs.collectives import find_list_collectives
from npufix.rewriters.edit.statements.programs.early_reductions import find_early_reductions
from npufix.rewriters.edit.statements.programs.loaders import find_data_loaders
from npufix.rewriters.edit.statements.programs.optimizers import find_optimizers
from npufix.rewriters.edit.statements.proposal import Change, Proposal, apply_changes, move_span
from npufix.rewriters.edit.statements.reductions import find_reductions
from npufix.rewriters.edit.statements.rounds.invariants import find_invariants
from npufix.rewriters.edit.statements.selections import (
    find_counted,
    find_index_lists,
    find_selections,
)
from npufix.rewriters.edit.statements.surroundings import Surroundings
from npufix.rewriters.edit.statements.vendor_operators import (
    RESIDUAL,
    find_sums_cut_off,
    find_vendor_operators,
    vendor_names,
)
from npufix.rewriters.facts.occasions import is_hot
from npufix.rewriters.graph.modules.names import source_lines
from npufix.rewriters.graph.modules.scopes import MODULE, Scope, scopes
from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rules.substitution import Form, Substitution


@dataclass(frozen=True, slots=True)
class Search:
    """What finds statements that no pattern of one value can."""

    find: Callable[[Surroundings], Iterator[Proposal]]
    words: str = ""
    """An expression for the whole of a word of the function that may hold something; "" for any."""
    piece: str = ""
    """What stands in its text as it is: to look for it costs a tenth of an expression."""
    text: str = ""
    """An expression for what stands in its text besides."""
    twice: str = ""
    """An expression whose group stands there twice or more with the same text."""
    module: str = ""
    """An expression for what must stand somewhere in the module besides."""
    unless: str = ""
    """An expression for what must not stand anywhere in the module."""
    configured: str = ""
    """An expression for modules that import nothing of torch and are to be read all the same."""
    hot_only: bool = False
    """It is worth it only where code runs in every step."""


def _words(behind: str, *words: str, before: str = r"\w") -> str:
    """Return an expression for words with something behind, and nothing of ``before`` in front.

    It begins with a letter of each word: ``re`` finds those five times as fast as a border of one.
    """
    return "|".join(f"{w[0]}(?<!{before}{w[0]}){w[1:]}{behind}" for w in words)


_REDUCTIONS = _words(r"\(", "max", "mean", "min", "sum")
SEARCHES: Mapping[str, Search] = {
    "attention-in-pieces": Search(
        find_attention_in_pieces,
        "matmul|bmm|einsum|baddbmm|transpose|permute",
        module="oftmax",  # ``self.attend = nn.Softmax(dim=-1)``
        unless=FUSED,
        hot_only=True,
    ),
    "attention-weights": Search(
        find_unused_weights, text=r"self\.\w+\(", module="MultiheadAttention"
    ),
    "biased-attention": Search(
        find_biased_attention,
        "matmul|bmm|einsum|transpose|permute",
        text=rf"(?s)\A(?=.*(?i:softmax))(?=.*({BIAS}|(?i:pos)))",
        hot_only=True,
    ),
    "chained-reductions": Search(
        find_reductions,
        "max|mean|min|sum",
        text=rf"(?s)({_REDUCTIONS}).*({_REDUCTIONS})",
    ),
    "checks": Search(
        find_checks,
        "all|allclose|any|argmax|equal|max|mean|min|multinomial|norm|sigmoid|sum",
        text=r"(assert|if) ",
        hot_only=True,
    ),
    "clipping": Search(find_clipping, "clip_grad_norm_"),
    "columns": Search(
        find_columns,
        text=r"\[[^\[\]\n]*\d\]",
        twice=r"(?<![\w.])([\w.]+)\[(?<!\.shape\[)[^\[\]\n]*\d\]",
    ),
    "constants": Search(
        find_constants, "arange|eye|full|linspace|logspace|ones|zeros", hot_only=True
    ),
    "counted-selections": Search(
        find_counted, text=r"\]\.(numel\(\)|shape\[0\]|size\(0\))|len\((?<=\blen\()[^\n]*\]\)"
    ),
    "creations": Search(
        find_creations,
        "arange|eye|full|linspace|ones|range|zeros",
        text=r"(?s)\A(?=.*(?:\.(?:to|cuda|npu|type_as)\(|\[[^\]\n]*\b(?:(?:torch|np|numpy)\.a)?range\("
        r"| = torch\.arange\())"
        r"(?=.*\b(?:arange|eye|full|linspace|ones|range|zeros)\((?:(?!device\s*=)[^\n)])*[\n)])",
    ),
    "data-loaders": Search(
        find_data_loaders,
        r"\w*(DataLoader|TrainingArguments|workers_per_gpu|train_dataloader)\w*",
        configured=configured.LOADERS,
    ),
    "device-waits": Search(find_device_waits, "synchronize|empty_cache", hot_only=True),
    "doubles": Search(
        find_doubles,
        text=r"\.double\(\)|torch\.(float64|double|DoubleTensor|complex128|cdouble)\b",
    ),
    "early-reductions": Search(find_early_reductions, "backward"),
    "einsum-products": Search(find_einsum_products, "einsum|contract"),
    "expert-loops": Search(
        find_expert_loops,
        r"(?i:expert\w*|\w*_experts?)|nonzero|(arg)?where|index_add\w*",
        text=r"(?m)^\s*(async )?for ",
    ),
    "expert-routers": Search(find_routers, "topk", text="softmax|sigmoid|group"),
    "flash-attention": Search(
        find_flash_attention,
        r"\w*flash_att\w*|memory_efficient_attention|\w*att(n|ention|end)(_?(fn|func|function|op))?",
        module=r"flash_attn_(\w*func|with_kvcache)|memory_efficient_attention",
    ),
    "growing-caches": Search(find_growing_caches, "cat|concat", text=GROWS, hot_only=True),
    "handed-in": Search(
        find_handed_in,
        "cos|sin|nonzero|arange|repeat_interleave|cumsum|one_hot|tril|triu|diff|sort|outer"
        "|cpu|item|tolist",
        hot_only=True,
    ),
    "host-values": Search(
        find_host_values,
        "item|tolist|cpu|numpy|float|int|a?max|min|range|arange|repeat(_interleave)?|reshape|view"
        "|zeros|any|all|sum|enumerate|zip|isfinite|isinf|isnan|nonzero|where|unique|masked_select",
        text="|".join(
            [
                _words(r"\(", "repeat_interleave"),
                r"\.(item|tolist|cpu|numpy)\(\)",
                _words(r"\(", "float", "int", "max", "min", "any", "all", "sum", before=r"[\w.]"),
                _words(r" \w+(, \w+)+ in [\w.]+:", "for"),
                _words(r" \w+, \(\w+(, \w+)+\) in enumerate\([\w.]+\):", "for"),
                r"k=(?<=[ (]k=)\w+\[\w+\]",
                r"\.to\([^)\n]*\"cpu\"",
                _words(r" [^\n]*\w\[[\w +-]+\]", "if", "while"),
                r"\[(?<=\w\[)[\w, +-]+\][ +*/\d-]*:",
                _words(r"\([^\n()]*\w\[\w+\]", "arange", "expand", "full", "ones", "range"),
                _words(r"\([^\n()]*\w\[\w+\]", "view", "zeros"),
                r":\s*(?!list\[|dict\[|tuple\[)[a-z_][\w.]*\[[\w, +-]+\]",
                r"\.(a?max|sum)\(|math\.is(finite|inf|nan)\(|torch\.is(finite|inf|nan)\(",
                _words(r"\(", "nonzero", "unique", "masked_select"),
                r"\[\w*(mask|valid|pos|idx|inds)\w*\]",
                _words(r"\(([^,\n()\[\]]|\[[^\]\n]*\]|\([^()\n]*\))*\)", "where"),
            ]
        ),
        hot_only=True,
    ),
    "index-lists": Search(find_index_lists, text=r"\[\d+(,[ \d,]*\d)?,?\s*\]\s*[,\]]"),
    "invariants": Search(find_invariants, "for|while", text=r"(?m)^\s+(for|while) ", hot_only=True),
    "list-collectives": Search(find_list_collectives, "all_gather|all_to_all"),
    "masked-formulas": Search(
        find_masked_formulas,
        piece="] ",
        text=r"(?m)^\s*[\w.]+\[[^\n:]*\] [-+*/]?= ",
        twice=r"\[([^\[\]\n:]*[A-Za-z_][^\[\]\n:]*)\]",
        hot_only=True,
    ),
    "masked-layers": Search(find_masked_layers, r"\w*Transformer(En|De)?(coderLayer)?"),
    "masked-values": Search(find_masked_values, REDUCED, text=ADDED_UP, hot_only=True),
    "optimizers": Search(
        find_optimizers, r"(?i:\w*(optim|adam|sgd)\w*)", configured=configured.OPTIMIZERS
    ),
    "projections": Search(find_projections, PROJECTED, unless=NAMES_ARE_FIXED, hot_only=True),
    "quantised-products": Search(find_quantised_products, WIDENS, hot_only=True),
    "rows-of-masks": Search(
        find_rows_of_masks, "where", text=r"torch\.where\(\w+(\[| == )", hot_only=True
    ),
    "scattered-products": Search(find_scattered_products, "scatter_?", text="zeros"),
    "selections": Search(
        find_selections,
        twice=r"\[(?:\w+, |:, )*([a-z]\w*(?: (?:[=!]=|[<>]=?) [\w.]+)?)[,\]]",
        hot_only=True,
    ),
    "static-caches": Search(find_static_caches, piece="] = ", text=WRITES, hot_only=True),
    "sums-cut-off": Search(find_sums_cut_off, r"(?i:\w*relu\w*)", text=RESIDUAL, hot_only=True),
    "uploads": Search(
        find_uploads,
        "as_tensor|from_numpy|tensor|copy_|new_tensor|to|cuda|npu",
        text=r"t(?<!\wt)(?:orch|h)\.(_shape_as_tensor|as_tensor|from_numpy|tensor|rand\w*|normal|(Float|Long)?Tensor)\(|\.(copy_|new_tensor)\("
        r"|self\.\w+\.(to|cuda|npu)\(|\n\s+\w+ = \w+([\[.][^\]\n(]*\]?)?\.(to|cuda|npu)\("
        r"|\.(?<=\w\.)(to|cuda|npu)\([^\n]* for \w",
        hot_only=True,
    ),
    "vendor-operators": Search(
        find_vendor_operators, vendor_names(), configured=configured.VENDORS
    ),
}
"""By name, as rules say it."""


_ANY_WORD = re.compile("|".join(s.words for s in SEARCHES.values() if s.words))
_OF_ANY_WORD = frozenset(name for name, s in SEARCHES.items() if not s.words)
OF_CONFIGURATIONS = frozenset(name for name, s in SEARCHES.items() if s.configured)
"""Those that also read a module that imports nothing of torch."""
OF_WAITS = frozenset({"checks", "creations", "host-values", "uploads"})
"""Those that change no formula, only where its numbers are made or read."""


def possible(
    rules: Sequence[Substitution],
    scope: Scope,
    words: frozenset[str],
    text: str,
    module: ast.Module,
) -> list[Substitution]:
    """Return the rules whose search may find something in a function of some words and text."""
    named = _find_named_by(words) | _OF_ANY_WORD
    likely = [rule for rule in rules if rule.search in named and _may_find(rule.search, text)]
    if any(SEARCHES[rule.search].hot_only for rule in likely) and not is_hot(scope, module):
        return [rule for rule in likely if not SEARCHES[rule.search].hot_only]
    return likely


def possible_in_module(rules: Sequence[Substitution], source: str) -> list[Substitution]:
    """Return the rules with a search that may find something in some function of a module."""
    return [
        rule
        for rule in rules
        if (search := SEARCHES.get(rule.search)) is not None
        and (not search.module or re.search(search.module, source))
        and not (search.unless and re.search(search.unless, source))
    ]


_met: set[str] = set()
_speaking: dict[str, frozenset[str]] = {}
"""The searches that the words met so far speak for: there are far fewer words than places."""


def _find_named_by(words: frozenset[str]) -> frozenset[str]:
    """Return the searches that some words speak for."""
    for word in words - _met:
        name = word.removeprefix("self.")
        if _ANY_WORD.fullmatch(name) is not None:
            _speaking[word] = frozenset(
                k for k, s in SEARCHES.items() if s.words and re.fullmatch(s.words, name)
            )
    _met.update(words)
    return frozenset().union(*(_speaking[word] for word in words & _speaking.keys()))


def _may_find(name: str, text: str) -> bool:
    search = SEARCHES[name]
    if search.piece not in text:
        return False
    if search.text and re.search(search.text, text) is None:
        return False
    again = re.findall(search.twice, text) if search.twice else ()
    return not search.twice or len(set(again)) < len(again)


def propose(
    flow: FunctionFlow,
    source: str,
    rules: Sequence[Substitution],
    may_look: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[Substitution, Proposal]]:
    """Yield what the searches of some rules find in a function.

    Raises:
        TooLargeError: ``may_look``, asked again and again, has said that it is enough.

    """
    here = Surroundings(flow, source_lines(source), may_look)
    for rule in rules:
        for proposal in SEARCHES[rule.search].find(here):
            yield rule, proposal


def form_of(rule: Substitution, proposal: Proposal) -> Form | None:
    """Return the form of a rule that a proposal is, ``None`` if it has none such."""
    wanted = (f for f in rule.forms if proposal.form in {"", f.pattern.__name__})
    return next(wanted, None)


def write(
    source: str, flow: FunctionFlow, proposal: Proposal, *, with_text: bool = True
) -> Rewrite:
    """Return the module with a proposal carried out; without ``with_text`` only that it can be.

    Raises:
        NotRewritableError: the new text is no Python, or the function is not in it.

    """
    lines = source_lines(source)
    first = min(change.span[0] for change in proposal.changes)
    try:
        line = _read_again(lines, flow, proposal.changes, first)
    except SyntaxError as error:
        raise NotRewritableError(f"the new code does not parse: {error.msg}") from error
    text = apply_changes(lines, proposal.changes) if with_text else ""
    asks = with_text and proposal.asked
    probe = _asking(Surroundings(flow, lines), proposal) if asks else ""
    if with_text:
        unit = unit_of(flow.function, lines)
        text = fit(text, lines, unit)
        portable = apply_changes(lines, proposal.elsewhere) if proposal.elsewhere else text
        portable = fit(portable, lines, unit)
    else:
        portable = text
    return Rewrite(text, portable, proposal.shown, line, "", probe)


def _asking(here: Surroundings, proposal: Proposal) -> str:
    """Return the old text with a call that gets what the conditions are about, "" if none fits."""
    at = proposal.asked_at or here.statement_of(proposal.code)
    if here.whole_lines(at) is None or isinstance(here.parents.get(id(at)), ast.Match):
        return ""
    operands = ", ".join(f"{name}={code}" for name, code in proposal.asked)
    line = (at.lineno, 0, at.lineno, 0)
    changes = (Change(line, f"{here.indent(at)}{PROBE}({operands})\n"),)
    text = apply_changes(here.lines, changes)
    try:
        try:
            _read_again(here.lines, here.flow, changes, at.lineno)
        except NotRewritableError:  # it stands before the function
            ast.parse(text)
    except SyntaxError:  # before ``elif`` there is no place
        return ""
    return text


def _read_again(
    lines: Sequence[str], flow: FunctionFlow, changes: Sequence[Change], first: int
) -> int:
    """Read the new code; return the line of the first statement that has changed.

    Of a change within a function nothing else is read: a file may have thousands of them.
    """
    if flow.function.name == MODULE:
        ast.parse(apply_changes(lines, changes))
        return first
    begin, end = extent(flow.function)
    places = [change.span for change in changes]  # what ends where it begins stands before it
    if all(begin <= s[0] and s[2] <= end and s[2:] != (begin, 0) for s in places):
        own = [replace(change, span=move_span(change.span, 1 - begin)) for change in changes]
        return (
            _function_again(apply_changes(lines[begin - 1 : end], own), flow, first - begin) + begin
        )
    wanted = flow.scope or Scope(flow.function, flow.cls)
    tree = ast.parse(apply_changes(lines, changes))
    same = [s for s in scopes(tree) if (s.qualname, s.number) == (wanted.qualname, wanted.number)]
    if len(same) != 1:
        raise NotRewritableError("the new function is not where it should be")
    return _line_of(same[0].function, first)


def _function_again(text: str, flow: FunctionFlow, first: int) -> int:
    """Read the new text of a function; return how far below its first line a statement is."""
    indented = text[:1] in {" ", "\t"}
    tree = ast.parse(f"if True:\n{text}" if indented else text)
    block = tree.body[0].body if indented and isinstance(tree.body[0], ast.If) else tree.body
    if len(block) != 1 or getattr(block[0], "name", "") != flow.function.name:
        raise NotRewritableError("the new function is not where it should be")
    above = 2 if indented else 1
    return _line_of(block[0], first + above) - above


def _line_of(function: ast.stmt, first: int) -> int:
    """Return the line of the first statement at a line, or of the last one before."""
    lines = sorted(
        n.lineno for n in walk(function) if isinstance(n, ast.stmt) and n is not function
    )
    return next((line for line in lines if line >= first), lines[-1])
