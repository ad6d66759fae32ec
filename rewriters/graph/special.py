"""What a node stands for that is no operator of torch: the values of ``Node.op`` beside those.

Every other ``op`` is the name of an operator as ``operators.txt`` has it (``mul``, ``relu_``), an
object that a class makes (``torch.optim.Adam``), or begins with one of the prefixes below.
"""

from __future__ import annotations

from enum import Enum

PYTHON = "py:"
"""Begins the name of a function of Python: ``py:len``, ``py:math.sqrt``."""
MODULE = "module:"
"""Begins the class of a submodule that is called, the first operand: ``module:LayerNorm``."""
STARRED = "(*)"
"""Ends an operator that is given ``*args`` or ``**kwargs``: ``reshape(*)`` of ``x.view(*size)``."""


class Op(str, Enum):
    """The special nodes; ``value`` is that of the node, where it has one."""

    # As of ``StrEnum``, which Python 3.10 does not have: ``f"{Op.CONST}"`` is ``const``.
    def __str__(self) -> str:
        return self.value

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)

    # Leaves
    CONST = "const"
    """A literal: ``2`` has the value 2."""
    PARAM = "param"
    """A parameter of the function; in a pattern, a variable. ``value``: its name."""
    GLOBAL = "global"
    """Something of the module or an import: ``math.inf``. ``value``: the full name."""
    DTYPE = "dtype"
    """``torch.float32``; ``value``: that text."""
    OUTSIDE = "outside"
    """A name that other functions may bind at any time: ``nonlocal x``. ``value``: the name."""
    UNSET = "unset"
    """A name on a path that does not bind it: ``x`` after ``if c: x = 1``, where ``c`` is false."""
    COUNTER = "counter"
    """The number of the round: ``i`` in ``for i in range(n)``."""
    ELEMENT = "element"
    """What a loop goes through: ``x`` in ``for x in xs``."""
    CARRIED = "carried"
    """What a name is at the start of some round: ``h`` in ``while c: h = h + 1``."""
    AFTER = "after"
    """What a name is behind a loop or a ``try`` that may have bound it."""
    CAUGHT = "caught"
    """What a name is in an ``except`` or ``case``; also the exception itself."""

    # Python's containers
    TUPLE = "tuple"
    LIST = "list"
    SLICE = "slice"
    """``a:b:c``; each part may be the constant ``None``."""
    STAR = "star"
    """``*sizes`` in a call or a tuple."""
    CONTAINER = "container"
    """A list that has a name and may be filled later: ``found = []``. No two are one."""
    AGAIN = "again"
    """One more new tensor of the same contents: the second ``torch.zeros(3)``. ``value``: which."""

    # What belongs to a value
    ATTR = "attr"
    """``x.name``; ``value``: the name."""
    ITEM = "item"
    """One of several results: ``x.chunk(2)[1]``, ``x.topk(k).indices``. ``value``: which."""
    GETITEM = "getitem"
    """Any other ``x[i]``."""
    SETITEM = "setitem"
    """``x[i] = y``, with the operands ``x``, ``i``, ``y``."""
    SETATTR = "setattr"
    """``x.name = y``; ``value``: the name."""
    SHAPE = "shape"
    """``x.shape``, ``x.size()``."""
    SIZE = "size"
    """``x.shape[i]``, ``x.size(i)``."""
    RANK = "rank"
    """``x.ndim``, ``x.dim()``."""
    WIDER = "wider"
    """What has as many dimensions as the widest of the operands; ``value``: and so many more."""
    DTYPE_OF = "dtype_of"
    """``x.dtype``."""
    CAST = "cast"
    """``x.to(dtype)``, ``x.float()``, ``x.type_as(y)``: the tensor and the dtype."""

    # Operators of Python that torch has not
    BOOLOP = "boolop"
    """``a and b``; ``value``: ``And`` or ``Or``."""
    COMPARE = "compare"
    """``a < b < c``; ``value``: the comparisons."""
    NOT = "not"
    IN = "in"
    NOT_IN = "notin"
    IS = "is"
    IS_NOT = "isnot"
    AUGMENT = "augment"
    """The write of ``x += y``: ``x`` and ``x + y``."""
    AUGMENTED = "augmented"
    """What ``x`` is after ``x += y``."""

    # Branches and blocks
    PHI = "phi"
    """``a if c else b``, or a name that two branches bind: ``c``, ``a``, ``b``."""
    CARRY = "carry"
    """What a loop hands on: the ``CARRIED`` or ``AFTER`` node and what was bound to the name."""
    REBIND = "rebind"
    """A new value for an ``OUTSIDE`` name; ``value``: the name."""
    LOOP = "loop"
    """The start of a loop over a value or while a test holds."""
    WITH = "with"
    MATCH = "match"
    CASE = "case"
    GUARD = "guard"
    """The ``if`` of a ``case``."""
    DEF = "def"
    """An inner function or class; ``value``: its name."""
    STATEMENT = "statement"
    """``raise``, ``assert`` and ``del`` with what they read."""

    # Calls
    CALL = "call"
    """A call that may do anything: the function, then the arguments."""
    OPAQUE = "opaque"
    """Code that is not looked into, with the local values it reads: ``[f(x) for x in xs]``."""
    ACTIVATION = "activation"
    """A call of ``self.act_fn`` out of a table of activations: the module and the operand."""

    # Patterns only
    EITHER = "either"
    """``either(a, b)`` of a rule: one spelling or the other. ``value``: line and column."""
