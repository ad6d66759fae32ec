"""Loops whose rounds launch kernels and need nothing of each other, whatever they compute.

The other files know loops by their form. What is left is read as a list of what each round reads,
calls and writes: if no round reads what another one wrote, all of them are one larger batch, and
what stands in the way of taking it whole (a mask, a length, a value that the host reads, a call
that takes one image) says how a person brings the rows together.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.advice.batches import GRADIENTS
from npufix.rewriters.edit.loops.advice.independence import (
    Round,
    asks_for_objects,
    base_of,
    is_stored,
    needs_others,
    read_round,
)
from npufix.rewriters.edit.loops.advice.objects import (
    goes_back,
    lays_out,
    scores_words,
    shapes_rows,
    stands_alone,
)
from npufix.rewriters.edit.loops.advice.rounds import look_up
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import (
    last_name,
    list_indexes,
    list_names,
    root_name,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.reading import Loop
    from npufix.rewriters.graph.dataflow import FunctionFlow

SUPPRESSED = (
    "boxes of one image or class after the other: torchvision.ops.batched_nms(boxes, scores, "
    "groups, threshold) takes all of them in one call, where groups holds the number of the image "
    "(times the classes, plus the class) of each box; scores below the limit are left out once for "
    "all, and kept.split(counts) hands each image its own"
)
ALIGNED = (
    "the sequences of a batch one after the other: F.ctc_loss takes log_probs of shape [steps, "
    "rows, classes], the labels as one padded matrix, and both lengths of all rows, in one call; "
    'reduction="none" keeps one loss a row'
)
ASSIGNED = (
    "targets of one image after the other: compute the costs of all images in one call (on "
    "torch.cat of their boxes, or padded and masked), bring them to the host once, costs.cpu() "
    "before the loop, and keep only the assignment in it; what is matched is read and written for "
    "all images at once with rows = torch.cat(...), columns = torch.cat(...)"
)
CROPPED = (
    "each round cuts out, or resizes, one part: torchvision.ops.roi_align(x, boxes, size), with "
    "the number of the image in front of each box, cuts out all parts at once; parts of one size "
    "are F.interpolate(torch.stack(parts)), and masks of boxes compare positions with all borders, "
    "(xs >= x1[:, None]) & (xs < x2[:, None])"
)
READ = (
    "the host waits in each round for what one row holds: read all of it once before the loop "
    "(numbers = x.tolist(), or x.cpu() for what is cut), or decide for all rows on the device with "
    "torch.where, x[mask] and torch.nonzero, which waits once"
)
RAGGED = (
    "the rows of each round have a length of their own, and each round launches its kernels for "
    "one of them: torch.cat(rows) holds all of them, segment = torch.repeat_interleave(torch.arange"
    "(n, device=x.device), lengths, output_size=total) says whose they are, x[segment] hands each "
    "what its image or sequence has, index_add_ and scatter_reduce add up and compare within each, "
    "and .split(lengths) takes them apart; or pad them, torch.nn.utils.rnn.pad_sequence(rows, "
    "batch_first=True), and mask with torch.arange(width) < lengths[:, None]"
)
INDEPENDENT = (
    "no round needs another one, yet each launches kernels of its own: compute once with all rows, "
    "x instead of x[i] (x.flatten(0, 1) where a function takes one batch, unflatten behind it; of "
    "lists, torch.stack before), dimensions counted from the end, what is the same in each round "
    "before the loop, and take along what each row picks with gather"
)
OF_CALLS = frozenset({ALIGNED, ASSIGNED, CROPPED, SUPPRESSED})
"""What is told before anything else: one call takes all rows."""
OF_ROUNDS = (SUPPRESSED, ALIGNED, ASSIGNED, CROPPED, READ, RAGGED, INDEPENDENT)
_MOST = 45
"""Statements of a round."""
_LEAST = 2
"""What a round computes at least."""
_BUILTIN = frozenset({"enumerate", "float", "int", "len", "max", "min", "range", "slice", "zip"})
_FEW = 4
"""Rounds that are written out and hardly cost anything."""
_OUT = (
    ast.AsyncFor, ast.Await, ast.Break, ast.Delete, ast.JoinedStr, ast.Lambda, ast.Return,
    ast.While, ast.Yield, ast.YieldFrom,
)  # fmt: skip
_NO_ROWS = re.compile(
    r"(?i)(layer|block|level|lvl|stage|scale|iter|epoch|expert|module|branch|step|depth|split|chunk"
    r"|heads?\b|conv|net(s|work)?\b|model|optim|param|grouper"
    r"|key|name|\bloss(es)?\b|loss_(dict|fn|func)|aux|task|deco|encod"
    r"|dataset|loader|worker|device|gpu|rank|round|trial|fold|env|file|path|stride|pyramid|hook"
    r"|feat|(^|_)outs?\b|(^|_)ins\b|inputs?\b|outputs?\b|micro|attr|field|module|cell|embed|proj"
    r"|shapes?\b(?!\[)|range\(len\(self\.|hidden|rnn|cache|past|generat|sampl(er|ing)|\bt_?steps?)"
)
"""What is gone over that is no row of a batch."""
_NAMED = (
    r"(gt|bbox|box|target|label|instance|indice|index|match|proposal|result|image|img|sample"
    r"|batch|sent|seq|token|graph|track|object|obj|mask|point|roi|polygon|line(?!ar)|quer|anchor|lens?\b"
    r"|length|segment|polic|agent|person|people|joint|video|clip|frame|speaker|utt|word|node|edge"
    r"|traject|episode|voxel|cloud|corner|cluster|pair|class|cls|bin|channel)"
)
_ROWS = re.compile(f"(?i){_NAMED}")
"""What holds a row for each image, object or sequence, by its name."""
_COUNTS = re.compile(
    rf"(?i)(\.shape\[|\.size\(|len\(|\b(b|bs|bsz|n|nb|k|m|t|b_s)\b)|batch|{_NAMED}"
)
"""What counts such rows: ``range(x.shape[0])``, ``range(batch_size)``."""
_OF_HOST = re.compile(
    r"(?i)(^print|log_|^log$|^open$|load|save|dump|draw|plot|visual|deepcopy|tokeni[sz]|join$|format"
    r"|send|recv|^put|^step$|backward|zero_grad|reduce_?grad|all_reduce|all_gather"
    r"|broadcast$|barrier|register|"
    r"^set|setattr|getattr|isinstance|hasattr|^info$|debug|warn|update|keys$|values$|items$|from_numpy"
    r"|numpy$|write|generate$|render|record|imread|imwrite|^pop$|^next$|simulat|rollout|^type$|^id$)"
)
"""Calls that work for the host, or on objects."""
_OF_OBJECTS = re.compile(r"(get|has|add|set)(_\w+)?_(fields?|boxes|masks|labels|scores)")
"""What objects hold for one image: ``proposal.get_field("labels")``."""
_NOT_LAUNCHED = frozenset(
    {"Size", "as_tensor", "device", "empty", "from_numpy", "is_tensor", "no_grad", "tensor"}
)
_MATCHES = re.compile(r"(?i)linear_sum_assignment|hungarian|^assign$|match(er)?$|lapjv")
_LISTED = re.compile(r"(?i)(^|_)lists?$")
_CROPS = frozenset({"crop", "interpolate", "resize", "roi_align", "roi_pool"})
_READS = frozenset({"cpu", "item", "tolist"})
_LENGTHS = frozenset({"masked_select", "nonzero", "split", "unique", "unique_consecutive"})
_ASKED = frozenset(
    {"cpu", "detach", "dim", "item", "numel", "size", "to", "tolist", "type", "view", "append"}
)
_METHODS = frozenset(operators.TABLE) | operators.PURE_METHODS | _ASKED


def say_of_rounds(flow: FunctionFlow, facts: Facts, loop: Loop) -> str:
    """Return the form of a loop whose rounds need nothing of each other, "" for any other."""
    taken = read_round(flow, facts, loop)
    if not (_goes_over_rows(taken) and _is_plain(taken) and _launches(taken)):
        return ""
    moves = bool(loop.body) and all(map(_moves, loop.body))
    if moves or not any(_computes(taken, node) for node in walk(*taken.code)):
        return ""  # what the host reads in each round is told by itself
    nodes = list(walk(*taken.code))
    if stands_alone(taken, nodes):
        return ""
    nodes = [n for n in nodes if not _changes_own(n, taken)]
    known = frozenset(_list_counted(taken))
    if asks_for_objects(taken, nodes) or needs_others(taken, nodes, known=known, inner=False):
        return ""
    return _form(taken)


def _moves(code: ast.stmt) -> bool:
    """Tell whether what a dictionary holds is moved: ``batch[k] = batch[k].to(device)``."""
    match code:
        case ast.Assign([ast.Subscript() as kept], ast.Call(ast.Attribute(of, how))):
            return how in operators.TO_DEVICE and ast.unparse(kept) == ast.unparse(of)
    return False


def _changes_own(code: ast.AST, taken: Round) -> bool:
    """Tell whether code tells something to an object of the round: ``boxes.add_field("n", n)``."""
    match code:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), method))):
            return name in taken.of_round and _OF_OBJECTS.fullmatch(method) is not None
    return False


def _list_counted(taken: Round) -> Iterator[str]:
    """Yield what counts along by lengths, which ``cumsum`` tells of all rounds: ``n += len(x)``."""
    for code in taken.body:
        match code:
            case ast.AugAssign(ast.Name(name), ast.Add(), value):
                parts = [n for n in walk(value) if isinstance(n, ast.Call)]
                sizes = all(last_name(n.func) in {"len", "size", "numel", "int"} for n in parts)
                if sizes and (parts or isinstance(value, ast.Constant | ast.Subscript)):
                    yield name


def _form(taken: Round) -> str:
    """Return the form for what stands in the way of taking all rows as they are."""
    nodes = list(walk(*taken.code))
    names = [last_name(call.func) for call in taken.calls()]
    picks = [n for n in nodes if isinstance(n, ast.Subscript)]
    forms = {
        SUPPRESSED: any("nms" in name.lower() for name in names),
        ALIGNED: any("ctc" in name.lower() for name in names),
        ASSIGNED: any(map(_MATCHES.search, names)),
        CROPPED: not _CROPS.isdisjoint(names) or any(_cuts_out(pick, taken) for pick in picks),
        RAGGED: not _LENGTHS.isdisjoint(names) or any(_is_ragged(pick, taken) for pick in picks),
        READ: not _READS.isdisjoint(names) or any(_asks(node, taken) for node in nodes),
    }
    given = {k.arg for call in taken.calls() for k in call.keywords}
    of_host = {*names} == {"arange"} and "device" not in given  # ranges, which cost nothing
    samples = "grid_sample" in names  # at points, and no boxes
    pieces = any(taken.is_piece(i) for p in picks for i in list_indexes(p.slice))
    windows = any(_is_of_one_width(pick, taken) for pick in picks)
    windows = windows or any(map(taken.shifts, picks))
    if of_host or windows or (pieces and (forms[CROPPED] or samples)):
        return ""  # ``x[:, i * n : (i + 1) * n]`` is no box, and ``x[i : i + n]`` has one length
    if _LENGTHS.isdisjoint(names) and any(map(taken.is_window, picks)):
        forms[RAGGED] = False
        if not any(forms.values()):
            return ""
    if (form := next((f for f, fits in forms.items() if fits), "")) or goes_back(taken):
        return form or GRADIENTS
    if shapes_rows(taken, nodes):
        return ""
    kinds = {taken.facts.is_tensor(items) is True for items in _list_gone_over(taken.loop.items)}
    if True in kinds and False in kinds and not any(_asks_length(n, taken) for n in nodes):
        return ""  # lists beside a tensor, and nothing shows that their rows differ
    return RAGGED if False in kinds else INDEPENDENT


def _is_of_one_width(code: ast.Subscript, taken: Round) -> bool:
    """Tell whether all rounds take as much: ``wave[start : start + size]``."""
    for index in list_indexes(code.slice):
        match index:
            case ast.Slice(ast.Name(start), ast.BinOp(ast.Name(first), ast.Add(), size), None):
                of_settings = list_names(size) and not list_names(size) & taken.of_round
                if start == first and start in taken.own and of_settings:
                    return True  # and not ``x[i : i + 1]``, a row
    return False


def _goes_over_rows(taken: Round) -> bool:
    """Tell whether a loop goes over images, objects or rows, many of them perhaps."""
    loop = taken.loop
    if not (list_names(loop.target) - {"_"}) & {n for c in taken.code for n in list_names(c)}:
        return False  # it repeats something
    cuts = (n for n in walk(*taken.code) if isinstance(n, ast.Subscript))
    of_scale = _NO_ROWS.search(f"{ast.unparse(loop.target)} {ast.unparse(loop.items)}")
    if of_scale or any(_cuts_batch(n, taken) for n in cuts):
        return False
    match loop.items:
        case ast.Call(ast.Name("range"), [ast.Constant(int(count))]):
            return count > _FEW
        case ast.Call(ast.Name("range"), [stop] | [_, stop]):
            return _COUNTS.search(ast.unparse(stop)) is not None
        case ast.Call(ast.Name("enumerate"), [over, *_]):
            return _is_over_rows(taken, over)
    return _is_over_rows(taken, loop.items)


def _cuts_batch(code: ast.Subscript, taken: Round) -> bool:
    """Tell whether a round has a batch of its own: ``out[:, :length]`` of one of several scales."""
    first, *others = list_indexes(code.slice)
    over = taken.loop.items
    items = over.args if isinstance(over, ast.Call) and last_name(over.func) == "zip" else []
    return (
        bool(items)
        and isinstance(first, ast.Slice)
        and not (first.lower or first.upper or first.step)
        and root_name(code) in taken.of_round
        and any(isinstance(i, ast.Slice) and list_names(i) & taken.of_round for i in others)
        and not any(taken.facts.is_tensor(item) for item in items)
    )


def _is_over_rows(taken: Round, over: ast.expr) -> bool:
    """Tell whether code is a tensor, or by its name a list of one for each image: ``gt_boxes``."""
    match over:
        case ast.Call(ast.Name("zip"), [*several]):
            return any(_is_over_rows(taken, one) for one in several)
        case ast.Name() | ast.Subscript() | ast.Attribute():
            if isinstance(base_of(over), ast.Attribute) and "self" in list_names(over):
                return taken.facts.is_tensor(over) is True
            return (
                taken.facts.is_tensor(over) is True or _ROWS.search(ast.unparse(over)) is not None
            )
    return taken.facts.is_tensor(over) is True


def _list_gone_over(items: ast.expr) -> Iterator[ast.expr]:
    """Yield what a loop goes over, each of several: ``x`` and ``y`` of ``zip(x, range(n), y)``."""
    if isinstance(items, ast.Call) and last_name(items.func) in {"enumerate", "zip"}:
        for item in items.args:
            yield from _list_gone_over(item)
    elif not _counts(items):
        yield items


def _asks_length(code: ast.AST, taken: Round) -> bool:
    """Tell whether code is ``len(row)``, or the shape of a row."""
    match code:
        case ast.Call(ast.Name("len"), [row]) | ast.Attribute(row, "shape" | "size"):
            return bool(list_names(row) & taken.own)
    return False


def _counts(items: ast.expr) -> bool:
    return isinstance(items, ast.Call) and last_name(items.func) == "range"


def _is_plain(taken: Round) -> bool:
    """Tell whether a round only computes: it calls no objects, no other module each, no host."""
    nodes = list(walk(*taken.code))
    if sum(isinstance(n, ast.stmt) for n in nodes) > _MOST or any(
        isinstance(n, _OUT) or _keeps_or_spares(n) for n in nodes
    ):
        return False
    return all(_is_plain_call(taken, call) for call in taken.calls())


def _keeps_or_spares(code: ast.AST) -> bool:
    """Tell whether a round sets what an object keeps, or gives memory back: it is one on purpose.

    ``self.at = [0]``, which a layer counts up in each round; ``parts[i] = None``.
    """
    match code:
        case ast.Attribute(ctx=ast.Store()):
            return True
        case ast.Attribute(ast.Name(owner), "grad"):  # of weights
            return owner != "autograd"
        case ast.Assign([ast.Subscript()], ast.Constant(None)):
            return True
    return False


def _is_plain_call(taken: Round, call: ast.Call) -> bool:
    func, name = call.func, last_name(call.func)
    dotted = taken.flow.names.dotted(func) or ""
    first = dotted.split(".")[0]
    if first in {"numpy", "random", "cv2", "os", "time", "json", "re", "copy"}:
        return False
    if first == "torch":
        beside = dotted.startswith(("torch.nn.init", "torch.distributed"))
        return not (scores_words(taken, call) or beside or name in {"empty_cache", "from_numpy"})
    match func:
        case ast.Name(called):
            return (
                called not in taken.of_round - _list_modules(taken)
                and _OF_HOST.search(called) is None
            )
        case ast.Attribute(owner, method):
            if _OF_HOST.search(method) is not None:
                return False
            objects = isinstance(owner, ast.Name) and owner.id in taken.own
            return not objects or method in _METHODS or _OF_OBJECTS.fullmatch(method) is not None
    return False


def _list_modules(taken: Round) -> set[str]:
    """Return what goes over the same modules in each round: ``for conv in self.convolutions``."""
    inner = [n for n in walk(*taken.body) if isinstance(n, ast.For)]
    same = [n for n in inner if isinstance(n.iter, ast.Attribute) and "self" in list_names(n.iter)]
    return {name for n in same for name in list_names(n.target)}


def _launches(taken: Round) -> bool:
    """Tell whether a round gives the device something to do for what it takes of a tensor.

    ``[torch.full_like(x, i) for i, x in enumerate(xs)]`` is what is written to join lists.
    """
    known = count = 0
    for node in walk(*taken.code):
        if isinstance(node, ast.Subscript):
            inner = taken.facts.node(node.value)
            if inner is not None and is_of_numpy(inner):
                return False
            count += bool(list_names(node) & taken.of_round)
            known += _takes_row(taken, node)
        elif isinstance(node, ast.Call):
            launched = _is_launched(taken, node)
            count += launched or _is_of_own(node)
            known += launched
        elif isinstance(node, ast.BinOp | ast.Compare | ast.UnaryOp):
            count += bool(list_names(node) & taken.of_round)
        elif isinstance(node, ast.Name) and node.id in taken.of_round:
            known += taken.facts.is_tensor(node) is True
    return known > 0 and count >= _LEAST


def _computes(taken: Round, code: ast.AST) -> bool:
    """Tell whether code does more than to read, compare and cut out: ``x[i, : ends[i]]``."""
    match code:
        case ast.Call():
            if last_name(code.func) in _READS or lays_out(taken, code):
                return False
            of_one = last_name(code.func).endswith("_single")  # which returns what it finds
            return _is_launched(taken, code) or (_is_of_own(code) and not of_one)
        case ast.BinOp() | ast.UnaryOp():
            return any(taken.facts.is_tensor(n) is True for n in ast.iter_child_nodes(code))
        case ast.Subscript(base):  # ``y_list[i] = y[i, :-1]`` fills a list
            of_list = taken.facts.is_tensor(base) is False or _LISTED.search(last_name(base))
            return is_stored(code) and not of_list and bool(list_names(code) & taken.of_round)
    return False


def _is_of_own(call: ast.Call) -> bool:
    """Tell whether a call is of a function of somebody's own, which computes for a row."""
    match call.func:
        case ast.Name(name):
            return name not in _BUILTIN
        case ast.Attribute(ast.Name("self")):
            return True
    return False


def _takes_row(taken: Round, code: ast.Subscript) -> bool:
    """Tell whether code is a row of a tensor, or one of the rows of a batch: ``x[i, :n]``."""
    known = taken.facts.is_tensor(code.value)
    items = list_indexes(code.slice)
    several = len(items) > 1 and any(isinstance(i, ast.Slice) for i in items)
    if known is False:
        return False
    if any(list_names(i) & taken.of_round for i in items):
        return known is True or several or _is_mask(items[0], taken)
    return several and bool(list_names(base_of(code)) & taken.of_round)  # ``row[:, 0]``


def _is_mask(item: ast.expr, taken: Round) -> bool:
    """Tell whether an index is a comparison that the round makes: ``row[row > 0]``."""
    value = look_up(item, taken.bound)
    return isinstance(value, ast.Compare) and bool(list_names(value) & taken.of_round)


def _is_launched(taken: Round, call: ast.Call) -> bool:
    """Tell whether a call computes on the device: one of torch, or of a row of a tensor."""
    dotted = taken.flow.names.dotted(call.func) or ""
    name = last_name(call.func)
    if dotted.startswith(("torch.", "torchvision.ops.")):
        depends = any(list_names(a) & taken.of_round for a in _given(call))
        return depends and name not in _NOT_LAUNCHED
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return (
        owner is not None
        and name in operators.OF_TENSORS_ONLY
        and bool(list_names(owner) & taken.of_round)
    )


def _given(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args
    yield from (k.value for k in call.keywords)


def _cuts_out(code: ast.Subscript, taken: Round) -> bool:
    """Tell whether code is ``x[i, y1[i]:y2[i], x1[i]:x2[i]]``."""
    ends = [i for i in list_indexes(code.slice) if isinstance(i, ast.Slice) and i.lower and i.upper]
    of_round = [i for i in ends if list_names(i) & taken.of_round]
    return len(of_round) > 1 and not is_stored(code)


def _is_ragged(code: ast.Subscript, taken: Round) -> bool:
    """Tell whether an index is a mask, or ends where the row does."""
    for item in list_indexes(code.slice):
        value = look_up(item, taken.bound)
        if not list_names(value) & taken.of_round or taken.is_piece(value):
            continue  # pieces ``i * n : (i + 1) * n`` are of one length
        if isinstance(value, ast.Compare | ast.Slice):
            return True
        if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Invert):
            return True
    return False


def _asks(node: ast.AST, taken: Round) -> bool:
    """Tell whether the host decides by what a row holds: ``if x[i] > 0``, ``int(x[i])``.

    For ``if len(x[i]) > 0`` it waits for nothing.
    """
    match node:
        case ast.If(test) | ast.IfExp(test):
            code: ast.expr = test
        case ast.Call(ast.Name("int" | "float" | "bool"), [code]):
            pass
        case _:
            return False
    sizes = {id(inner) for n in walk(code) if _is_size(n) for inner in ast.walk(n)}
    picks = [n for n in walk(code) if isinstance(n, ast.Subscript) and id(n) not in sizes]
    return any(list_names(n) & taken.of_round for n in picks)


def _is_size(code: ast.AST) -> bool:
    match code:
        case ast.Call(ast.Name("len")) | ast.Attribute(attr="shape"):
            return True
        case ast.Subscript(ast.Attribute(attr="shape")):
            return True
    return False
