"""The profiled program: a small transformer with some habits that are slow on an NPU.

A launch is one operator of the host and the kernels that it starts. ``{B}`` in a shape is the
batch size, which differs between the variants of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

PROJECT = "/home/user/project"
LIBRARY = "/usr/lib/python3.10/site-packages"
MAIN, AUTOGRAD, QUEUE = 0, 1, 2
"""Threads: Python, backward, and the one that hands tasks to the device."""


@dataclass(frozen=True)
class Kernel:
    """A task of the device."""

    name: str
    type: str
    core: str
    duration_us: float
    inputs: tuple[str, str, str] = ("{B},1024,512", "FLOAT", "ND")
    """Shapes, dtypes and formats."""
    outputs: tuple[str, str, str] = ("{B},1024,512", "FLOAT", "ND")
    blocks: int = 40
    stream: int = 2
    busy: tuple[float, ...] = ()
    """Share of its time that each pipe of its core is busy, as CUBE or VECTOR name them."""

    @property
    def collective(self) -> bool:
        """A collective, which runs beside the compute kernels."""
        return self.type.startswith("hcom_")

    @property
    def listed(self) -> bool:
        """Stands in kernel_details.csv, unlike copies."""
        return not self.name.startswith("MEMCPY")


@dataclass(frozen=True)
class Launch:
    """An operator of the host, ``chain`` from the outermost to the one that launches."""

    chain: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    stack: tuple[str, ...] = ()
    """Frames, innermost first; none on the autograd thread."""
    scopes: tuple[str, ...] = ()
    """Python functions around it within its layer, outermost first; ``{L}`` is the layer."""
    dims: str = ""
    types: str = ""
    host_us: float = 30.0
    thread: int = MAIN
    slot: int = -1
    """Which sequence number of its layer the operator has, -1 for none."""
    waits: bool = False
    """The host waits for the device (``.item()``)."""
    calls_cann: bool = True
    """The last of the chain is the call of CANN, which is no operator of the framework."""

    @property
    def operators(self) -> int:
        """How many of the chain are operators of the framework."""
        return len(self.chain) - self.calls_cann

    @property
    def node(self) -> int:
        """Place of the autograd node, behind the event of the engine if there is one."""
        return int(self.chain[0].startswith("autograd::engine") and len(self.chain) > 1)

    def is_numbered(self, place: int) -> bool:
        """Operators of a library have a sequence number, launches and the engine have none."""
        return place < self.operators and not self.chain[place].startswith("autograd::engine")

    def is_backward(self, place: int) -> bool:
        """Whether an operator names the thread that ran it forward."""
        of_node = place > 0 or (self.slot >= 0 and not self.node)
        return self.thread == AUTOGRAD and of_node and self.is_numbered(place)

    def has_shapes(self, place: int) -> bool:
        """Whether an operator records the shapes of its arguments."""
        return bool(self.types) and self.is_numbered(place)


class Program:
    """What a run is made of; its numbers (``code``) lead into these tuples and arrays."""

    def __init__(self, launches: tuple[Launch, ...]) -> None:
        """Keep the launches, and what is often asked of them and of their kernels."""
        self.launches = launches
        self.kernels = tuple(dict.fromkeys(each for one in launches for each in one.kernels))
        numbers = {kernel: number for number, kernel in enumerate(self.kernels)}
        self.kernel_of = np.array([numbers[each] for one in launches for each in one.kernels])
        self.depth = np.array([len(launch.chain) for launch in launches])
        self.count = np.array([len(launch.kernels) for launch in launches])
        self.slots = np.array([launch.slot for launch in launches])
        self.nodes = np.array([launch.node for launch in launches])
        self.autograd = np.array([launch.thread == AUTOGRAD for launch in launches])
        self.collective = np.array([kernel.collective for kernel in self.kernels])
        self.listed = np.array([kernel.listed for kernel in self.kernels])
        self.computes = self.listed & ~self.collective
        self.streams = np.array([kernel.stream for kernel in self.kernels])


_LOOP = (
    f"{PROJECT}/train.py(120): train",
    f"{PROJECT}/train.py(188): main",
    f"{PROJECT}/train.py(201): <module>",
)
_CALL = f"{LIBRARY}/torch/nn/modules/module.py(1527): _call_impl"
_MODEL = (_CALL, f"{PROJECT}/model.py(91): forward", _CALL, *_LOOP)


def _user(line: int, function: str = "forward") -> tuple[str, ...]:
    return (f"{PROJECT}/model.py({line}): {function}", *_MODEL)


def _library(frame: str, line: int) -> tuple[str, ...]:
    return (f"{LIBRARY}/torch/nn/{frame}", _CALL, *_user(line))


def _vector(api: str, kind: str, us: float, slot: int, line: int) -> Launch:
    """Return an element-wise operator, at a line of RMSNorm or, further down, of MLP."""
    kernel = Kernel(f"aclnn{api}_{kind}AiCore_{kind}", kind, "AI_VECTOR_CORE", us)
    dims, types = "{B},1024,512;\r\n", "float;\r\nScalar"
    chain = (f"aten::{api.lower()}", f"aclnn{api}")
    scopes = _NORM if line < _FIRST_LINE_OF_MLP else _MLP
    return Launch(chain, (kernel,), _user(line), scopes, dims, types, slot=slot)


_NORM = ("nn.Module: RMSNorm_{L}", "model.py(24): forward")
_ATTENTION = ("nn.Module: Attention_{L}", "model.py(40): forward")
_MLP = ("nn.Module: MLP_{L}", "model.py(60): forward")
_FIRST_LINE_OF_MLP = 60
_NZ = (
    "{B},64,64,16,16;32,32,16,16;;",
    "FLOAT16;FLOAT16;FLOAT16;INT8",
    "FRACTAL_NZ;FRACTAL_NZ;ND;ND",
)
_TRANSPOSED = Kernel(
    "trans_TransData_0", "TransData", "AI_VECTOR_CORE", 21.0,
    ("{B},3,224,224", "FLOAT16", "NCHW"), ("{B},1,224,224,16", "FLOAT16", "NC1HWC0"), 32,
)  # fmt: skip

LAYER: tuple[Launch, ...] = (
    _vector("Pow", "Pow", 18.5, 0, 25),
    Launch(
        ("aten::mean", "aten::sum", "aclnnMean"),
        (Kernel("aclnnMean_ReduceMeanAiCore_ReduceMean", "ReduceMean", "MIX_AIV", 24.25,
                ("{B},1024,512;1", "FLOAT;INT64", "ND;ND"), ("{B},1024,1", "FLOAT", "ND")),),
        _user(25), _NORM, "{B},1024,512;\r\n;\r\n;\r\n", "float;\r\nScalarList;\r\nScalar;\r\nNone",
        slot=1,
    ),
    _vector("Rsqrt", "Rsqrt", 2.5, 2, 25),
    _vector("Mul", "Mul", 19.125, 3, 26),
    Launch(
        ("aten::linear", "aten::addmm", "aclnnAddmm"),
        (Kernel("aclnnAddmm_MatMulCommon_MatMulV2", "MatMulV2", "AI_CORE", 121.5,
                _NZ, ("{B},1024,1536", "FLOAT16", "ND"), 24),),
        _library("modules/linear.py(114): forward", 41),
        (*_ATTENTION, "nn.Module: Linear_{L}", "torch/nn/modules/linear.py(114): forward"),
        "1536;\r\n{B},512;\r\n512,1536;\r\n", "c10::Half;\r\nc10::Half;\r\nc10::Half;\r\nScalar",
        host_us=45.0, slot=4,
    ),
    Launch(
        ("npu::npu_fusion_attention", "aclnnFlashAttentionScore"),
        (Kernel("aclnnFlashAttentionScore_FlashAttentionScore_FlashAttentionScore",
                "FlashAttentionScore", "MIX_AIC", 210.75,
                ("{B},8,1024,64;{B},8,1024,64;{B},8,1024,64;;", "FLOAT16;FLOAT16;FLOAT16;UINT8",
                 "ND;ND;ND;ND"), ("{B},8,1024,64", "FLOAT16", "ND"), 20),),
        _user(44), _ATTENTION, "{B},8,1024,64;\r\n{B},8,1024,64", "c10::Half;\r\nc10::Half", slot=5,
    ),
    Launch(
        ("aten::dropout", "npu::_npu_dropout", "aclnnDropoutGenMaskV2"),
        (Kernel("aclnnDropoutGenMaskV2_DSAGenBitMask_DSAGenBitMask", "DSAGenBitMask", "DSA_SQE",
                3.4, ("N/A", "N/A", "N/A"), ("36864", "UINT8", "FORMAT_ND"), 0, 3),),
        _library("functional.py(1295): dropout", 46), (*_ATTENTION, "nn.Module: Dropout_{L}"),
        "{B},1024,512", "c10::Half", slot=6,
    ),
    Launch(
        ("aten::index_put_", "aten::_index_put_impl_", "aclnnIndexPutImpl"),
        (Kernel("aclnnIndexPutImpl_IndexPutV2_IndexPutV2", "IndexPutV2", "AI_CPU", 340.0,
                ("{B},512;{B};1;", "INT64;FLOAT;BOOL;INT64", "ND;ND;ND;ND"),
                ("{B},512", "INT64", "ND"), 1),),
        _user(48, "mask"), _ATTENTION, "{B},512;\r\n;\r\n", "long;\r\n;\r\nlong;\r\nScalar",
    ),
    Launch(
        ("aten::conv2d", "aten::convolution", "aten::_convolution", "Conv2D"),
        (_TRANSPOSED,
         replace(_TRANSPOSED, name="trans_TransData_1", duration_us=6.54,
                 inputs=("64,3,11,11", "FLOAT16", "NCHW"),
                 outputs=("121,4,16,16", "FLOAT16", "FRACTAL_Z"), blocks=8),
         Kernel("Conv2D1", "Conv2D", "AI_CORE", 98.0,
                ("{B},1,224,224,16;121,4,16,16;64", "FLOAT16;FLOAT16;FLOAT16",
                 "NC1HWC0;FRACTAL_Z;ND"), ("{B},4,55,55,16", "FLOAT16", "NC1HWC0"), 16),
         replace(_TRANSPOSED, name="trans_TransData_2", duration_us=14.25)),
        _library("modules/conv.py(456): _conv_forward", 61),
        (*_MLP, "nn.Module: Conv2d_{L}", "torch/nn/modules/conv.py(459): forward"),
        "{B},3,224,224;\r\n64,3,11,11;\r\n64;\r\n",
        "c10::Half;\r\nc10::Half;\r\nc10::Half;\r\nScalarList",
        host_us=120.0, slot=7,
    ),
    _vector("Add", "Add", 17.75, 8, 65),
    _vector("Cast", "Cast", 9.5, -1, 66),
)  # fmt: skip
"""One layer, forward."""

LOSS: tuple[Launch, ...] = (
    Launch(
        ("aten::cross_entropy_loss", "aten::log_softmax", "aclnnLogSoftmax"),
        (Kernel("aclnnLogSoftmax_LogSoftmaxAiCore_LogSoftmaxV2", "LogSoftmaxV2",
                "AI_VECTOR_CORE", 40.0),),
        (f"{LIBRARY}/torch/nn/functional.py(3053): cross_entropy",
         f"{PROJECT}/train.py(95): step", *_LOOP),
        ("train.py(94): step", "torch/nn/functional.py(3014): cross_entropy"),
        "{B},1000;\r\n{B};\r\n", "float;\r\nlong;\r\nScalar", slot=0,
    ),
)  # fmt: skip

READ_LOSS = Launch(
    ("aten::item", "aten::_local_scalar_dense", "acl_memcpy_device_to_host"),
    (Kernel("MEMCPY_ASYNC", "MEMCPY_ASYNC", "PCIE_DMA_SQE", 2.25, blocks=0),),
    (f"{PROJECT}/train.py(97): step", *_LOOP), ("train.py(94): step",), "", "float", waits=True,
)  # fmt: skip

_WEIGHTS = Kernel(
    "aclnnForeachAddListV2_ForeachAddListV2_ForeachAddList", "ForeachAddList", "AI_VECTOR_CORE",
    150.0, ("512,1536;1536;512,1536", "FLOAT;FLOAT;FLOAT", "ND;ND;ND"), blocks=48,
)  # fmt: skip
UPDATE = Launch(
    ("Optimizer.step#SGD.step", "aten::_foreach_add_", "aclnnForeachAddListV2"),
    (_WEIGHTS,),
    (f"{LIBRARY}/torch/optim/sgd.py(313): _multi_tensor_sgd",
     f"{LIBRARY}/torch/optim/optimizer.py(373): wrapper",
     f"{PROJECT}/train.py(103): step", *_LOOP),
    ("train.py(94): step", "torch/optim/optimizer.py(355): wrapper"),
    "512,1536;\r\n512,1536;\r\n", "float;\r\nfloat;\r\nScalar",
)  # fmt: skip
"""Repeated until the step has as many kernels as it must."""

GRADIENT = Launch(
    ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
     "torch::autograd::AccumulateGrad", "aten::add_", "aclnnInplaceAdd"),
    (Kernel("aclnnInplaceAdd_AddAiCore_Add", "Add", "AI_VECTOR_CORE", 8.0,
            ("512,1536;512,1536", "FLOAT;FLOAT", "ND;ND"), ("512,1536", "FLOAT", "ND")),),
    dims="512,1536", types="float", thread=AUTOGRAD,
)  # fmt: skip
REDUCE = Launch(
    ("HcclAllreduce",),
    (Kernel("hcom_allReduce__586_%d_1", "hcom_allReduce_", "", 900.0, blocks=0, stream=4),),
    thread=AUTOGRAD,
)


def _backward(forward: Launch) -> Launch:
    """Return the operator that the autograd thread runs for ``forward``."""
    node = forward.chain[-2].removeprefix("aten::").removeprefix("npu::").strip("_")
    node = "".join(part.capitalize() for part in node.split("_")) + "Backward0"
    kernel = forward.kernels[-1]
    gradient = replace(
        kernel,
        name=f"aclnn{kernel.type}Grad_{kernel.type}GradAiCore_{kernel.type}Grad",
        type=f"{kernel.type}Grad",
        duration_us=kernel.duration_us * 1.5,
        stream=2,
        core="AI_VECTOR_CORE" if kernel.core == "DSA_SQE" else kernel.core,
    )
    return Launch(
        (f"autograd::engine::evaluate_function: {node}", node, f"aclnn{kernel.type}Grad"),
        (gradient,),
        dims=forward.dims,
        types=forward.types,
        thread=AUTOGRAD,
        slot=forward.slot,
    )


LAYER_BACKWARD = (
    *(_backward(launch) for launch in reversed(LAYER) if launch.slot >= 0),
    GRADIENT,
)
LOSS_BACKWARD = tuple(_backward(launch) for launch in reversed(LOSS))

LAUNCHES: tuple[Launch, ...] = (
    *LAYER, *LOSS, READ_LOSS, UPDATE, REDUCE, *LOSS_BACKWARD, *LAYER_BACKWARD,
)  # fmt: skip
CODES = {launch: code for code, launch in enumerate(LAUNCHES)}
PROGRAM = Program(LAUNCHES)
SLOTS = 1 + max(launch.slot for launch in LAYER)
FORWARD_OF = {
    (backward.slot, backward in LOSS_BACKWARD): forward
    for forwards, backwards in ((LAYER, LAYER_BACKWARD), (LOSS, LOSS_BACKWARD))
    for backward in backwards
    for forward in forwards
    if backward.slot == forward.slot >= 0
}


def forward_of(launch: Launch) -> Launch | None:
    """Return the launch of the main thread that led to this one, None if unknown."""
    if launch.thread == MAIN:
        return launch
    return FORWARD_OF.get((launch.slot, launch in LOSS_BACKWARD))
