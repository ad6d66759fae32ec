"""The profiled program: a small transformer with some habits that are slow on an NPU.

Its layers are repeated until a step has as many kernels as it must.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.program import AUTOGRAD, MAIN, Kernel, Launch, Program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.generator.text import Integers

PROJECT = "/home/user/project"
LIBRARY = "/usr/lib/python3.10/site-packages"
_LAYERS_PER_REDUCE = 4
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


def _of_autograd(forward: Launch) -> Launch:
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
    *(_of_autograd(launch) for launch in reversed(LAYER) if launch.slot >= 0),
    GRADIENT,
)
LOSS_BACKWARD = tuple(_of_autograd(launch) for launch in reversed(LOSS))

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


@dataclass(frozen=True)
class Part:
    """Launches in a row: ``code`` into LAUNCHES, ``layer``, and ``sequence`` (-1 for none)."""

    code: Integers
    layer: Integers
    sequence: Integers


def step_parts(kernels: int, *, communication: bool) -> tuple[Part, ...]:
    """Return forward (up to the loss), backward and update of a step with so many kernels."""
    layers = _layers(kernels, communication=communication)
    if layers < 0:
        return (_repeat([UPDATE], kernels),)
    forward = _join(
        _repeat(LAYER, layers), _repeat(LOSS, 1, layers), _repeat([READ_LOSS], 1, layers)
    )
    backward = _join(
        _repeat(LOSS_BACKWARD, 1, layers), _backward(layers, communication=communication)
    )
    used = _listed(LAYER) * layers + len(backward.code) + _listed(LOSS)
    return forward, backward, _repeat([UPDATE], kernels - used)


def _layers(kernels: int, *, communication: bool) -> int:
    """Return how many layers fit, -1 if not even the loss does."""
    fixed = _listed(LOSS) + _listed(LOSS_BACKWARD)
    if kernels < fixed:
        return -1
    per_layer = _listed(LAYER) + _listed(LAYER_BACKWARD)
    layers = (kernels - fixed) // per_layer
    while layers * per_layer + _reduces(layers) * communication > kernels - fixed:
        layers -= 1
    return layers


def _reduces(layers: int) -> int:
    return -(-layers // _LAYERS_PER_REDUCE)


def _listed(launches: Iterable[Launch]) -> int:
    return sum(kernel.listed for launch in launches for kernel in launch.kernels)


def _repeat(launches: Iterable[Launch], times: int, first_layer: int = 0) -> Part:
    """Return the launches of ``times`` layers, one after the other."""
    row = list(launches)
    layer = first_layer + np.repeat(np.arange(times), len(row))
    # An operator without autograd node has the number that the next one with a node gets.
    slots, following = [], SLOTS
    for launch in reversed(row):
        following = launch.slot if launch.slot >= 0 else following
        slots.append(following if len(launch.chain) > 1 else -1)
    slot = np.tile(np.array(slots[::-1], np.int64), times)
    return Part(
        code=np.tile(np.array([CODES[launch] for launch in row], np.int64), times),
        layer=layer,
        sequence=np.where(slot < 0, -1, layer * SLOTS + slot),
    )


def _backward(layers: int, *, communication: bool) -> Part:
    """Return the layers in reverse, with a collective after every few of them."""
    part = _repeat(LAYER_BACKWARD, layers)
    layer = layers - 1 - part.layer
    slots = np.tile(np.array([launch.slot for launch in LAYER_BACKWARD], np.int64), layers)
    sequence = np.where(slots < 0, -1, layer * SLOTS + slots)
    behind = np.arange(1, _reduces(layers) * communication + 1) * _LAYERS_PER_REDUCE
    at = np.minimum(behind, layers) * len(LAYER_BACKWARD)
    return Part(
        code=np.insert(part.code, at, CODES[REDUCE]),
        layer=np.insert(layer, at, np.maximum(layers - behind, 0)),
        sequence=np.insert(sequence, at, -1),
    )


def _join(*parts: Part) -> Part:
    return Part(
        np.concatenate([part.code for part in parts]),
        np.concatenate([part.layer for part in parts]),
        np.concatenate([part.sequence for part in parts]),
    )
