"""Record what a PyTorch program asks of its device: operators, shapes, stacks, autograd links.

``torch.profiler`` has the same facts, but its Python stacks carry the line of each *definition*
where a torch_npu ``Call stack`` carries the line being *executed*. So the operators are taken
from the dispatcher itself, one level below autograd, where a device backend sees them too.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from types import FrameType

HERE = Path(__file__).resolve().parent
_SITE = Path(torch.__file__).parents[1]
_LIBRARIES = "/usr/local/lib/python3.11"
_TYPES = {
    torch.float32: ("FLOAT", "float"), torch.float16: ("FLOAT16", "c10::Half"),
    torch.bfloat16: ("DT_BF16", "c10::BFloat16"), torch.float64: ("DOUBLE", "double"),
    torch.int64: ("INT64", "long int"), torch.int32: ("INT32", "int"),
    torch.uint8: ("UINT8", "unsigned char"), torch.bool: ("BOOL", "bool"),
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """The description of a tensor that outlives the tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: int = 0

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size."""
        return self.numel * self.dtype.itemsize

    @property
    def dims(self) -> str:
        """The shape as the profiler writes it."""
        return ",".join(map(str, self.shape))

    @property
    def types(self) -> tuple[str, str]:
        """The type as the device and as the host name it."""
        return _TYPES[self.dtype]


@dataclass(frozen=True)
class Frame:
    """An executing line."""

    path: str
    line: int
    function: str

    def text(self, program: Path) -> str:
        """Return the frame as the profiler writes it."""
        return f"{spell_recorded_path(self.path, program)}({self.line}): {self.function}"


def spell_recorded_path(path: str | Path, program: Path) -> str:
    """Return where a file would have been on the machine with the NPU."""
    if Path(path).is_relative_to(program):
        return f"/workspace/{program.name}/{Path(path).relative_to(program).as_posix()}"
    if Path(path).is_relative_to(_SITE):
        return f"{_LIBRARIES}/site-packages/{Path(path).relative_to(_SITE).as_posix()}"
    return f"{_LIBRARIES}/{Path(path).name}"


@dataclass(frozen=True)
class Operator:
    """One call that reached the dispatcher."""

    name: str
    """``aten::add``, as the profilers print it."""
    overload: str
    arguments: tuple[Any, ...]
    """Tensors as ``Tensor``, the rest as it was."""
    outputs: tuple[Tensor, ...]
    stack: tuple[Frame, ...]
    sequence: int
    """Of the autograd node that this call made, or -1."""
    engine: bool = False
    """Called by the autograd engine, which runs on a thread of its own on an NPU."""
    node: str = ""
    """Name of the autograd node that made this call, in the backward pass."""
    node_sequence: int = -1
    index_counts: int = 0
    """Elements that the boolean indices of an index_put select (a fact of the data)."""
    range: str = ""
    """Set if this is the beginning or the end of a named range, and no operator."""
    strided: bool = False
    """The first tensor is expanded or transposed: a copy of it has to reorder the elements."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments."""
        return [leaf for leaf in tree_leaves(self.arguments) if isinstance(leaf, Tensor)]


@dataclass
class Step:
    """What the program asked of the device in one step."""

    number: int
    operators: list[Operator] = field(default_factory=list)
    stack: tuple[Frame, ...] = ()
    """Where the program said that the step is over."""


def call_stack(frame: FrameType | None, entry: Path) -> tuple[Frame, ...]:
    """Return executing lines from ``frame`` out to the module of ``entry``, without our own."""
    frames = []
    while frame is not None:
        code = frame.f_code
        if not Path(code.co_filename).is_relative_to(HERE) and not is_plumbing(code.co_filename):
            frames.append(Frame(code.co_filename, frame.f_lineno, code.co_name))
        if code.co_name == "<module>" and code.co_filename == str(entry):
            break
        frame = frame.f_back
    return tuple(frames)


def is_plumbing(path: str) -> bool:
    """Frames that torch puts around a dispatch mode: a run without the recorder has none."""
    return path.endswith(("torch/_compile.py", "torch/_dynamo/eval_frame.py"))


def describe(value: Any) -> Any:
    """Replace tensors by their descriptions."""
    if isinstance(value, torch.Tensor):
        return Tensor(tuple(value.shape), value.dtype, value.untyped_storage().data_ptr())
    if isinstance(value, (list, tuple)):
        return tuple(describe(item) for item in value)
    return value


class Recorder(TorchDispatchMode):
    """Appends every operator call to the current step, while there is one."""

    def __init__(self, entry: Path) -> None:
        super().__init__()
        self.entry = entry
        self.step: Step | None = None
        self.paused = False
        self._peek = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        # Autograd numbers its nodes: if the counter moved, it made a node for this very call.
        peek = torch.autograd._get_sequence_nr()
        made_node = node is None and peek > self._peek
        self._peek = peek
        if self.step is None or self.paused:
            return func(*args, **kwargs)
        if func.namespace != "aten":
            self._record_range(func, args)
            return func(*args, **kwargs)
        # An in-place operator changes what its arguments say, so they are described first.
        arguments = describe(complete(func, args, kwargs))
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        strided = bool(tensors) and not tensors[0].is_contiguous()
        selected = index_count(args) if "index_put" in str(func) else 0
        stack = call_stack(sys._getframe(1), self.entry)
        engine = any(frame.function == "_engine_run_backward" for frame in stack)
        if engine and func is torch.ops.aten.add.Tensor:
            node = None  # no formula of this program adds: the engine sums up two gradients
        result = func(*args, **kwargs)
        self.step.operators.append(
            Operator(
                name=f"aten::{func.overloadpacket.__name__}",
                overload=func._overloadname,
                arguments=arguments,
                outputs=describe_results(result),
                stack=() if engine else stack,
                sequence=peek - 1 if made_node else -1,
                engine=engine,
                node=node.name() if node is not None else "",
                node_sequence=node._sequence_nr() if node is not None else -1,
                index_counts=selected,
                strided=strided,
            )
        )
        return result

    def _record_range(self, func: Any, args: Any) -> None:
        """``torch.profiler.record_function``, which torch.optim puts around every step."""
        enter, leave = "_record_function_enter_new", "_record_function_exit"
        name = func.overloadpacket.__name__
        if self.step is not None and name in (enter, leave):
            stack = call_stack(sys._getframe(2), self.entry) if name == enter else ()
            title = str(args[0]) if name == enter else ""
            self.step.operators.append(Operator(title, "", (), (), stack, sequence=-1, range=name))

    def call_whole(self, name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Record a composite operator as the one operator that it is on an NPU."""
        self.paused = True
        try:
            result = function(*args, **kwargs)
        finally:
            self.paused = False
        if self.step is not None:
            self.step.operators.append(
                Operator(
                    name=name,
                    overload="",
                    arguments=describe([*args, *kwargs.values()]),
                    outputs=describe_results(result),
                    stack=call_stack(sys._getframe(1), self.entry),
                    sequence=-1,
                )
            )
        return result


def complete(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """All arguments in the order of the schema, defaults included, as the profilers print them."""
    return [
        args[position]
        if position < len(args)
        else kwargs.get(argument.name, argument.default_value)
        for position, argument in enumerate(func._schema.arguments)
    ]


def describe_results(result: Any) -> tuple[Tensor, ...]:
    """Return the tensors of a result."""
    return tuple(describe(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))


def index_count(args: Any) -> int:
    """How many elements ``x[mask] = ...`` writes."""
    masks = [index for index in args[1] if index is not None and index.dtype == torch.bool]
    return sum(int(mask.sum()) for mask in masks)
