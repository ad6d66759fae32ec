"""The ACL runtime on host memory: one device whose memory, streams and events are the host's."""

from __future__ import annotations

import ctypes
import itertools
from ctypes import c_char, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import partial
from typing import TYPE_CHECKING, Any

from npufix.rewriters.verification.virtual_npu.recorder import OUTSIDE, Launch
from npufix.rewriters.verification.virtual_npu.wheel.entry_points import (
    DIRECT,
    NO_SUCH_DEVICE,
    OUT_OF_MEMORY,
    REFUSED,
    SUCCESS,
    DeviceTensor,
    describe_preparation,
    entry,
    list_declared,
    read_string,
    store,
)
from npufix.rewriters.verification.virtual_npu.wheel.requirements import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npufix.rewriters.verification.virtual_npu.loading import Slots
    from npufix.rewriters.verification.virtual_npu.recorder import Recorder

_ALIGNMENT = 512
_TOTAL, _FREE = 64 << 30, 60 << 30
_CORES = 24
_DONE = 1
"""ACL_EVENT_RECORDED_STATUS_COMPLETE, ACL_EVENT_WAIT_STATUS_COMPLETE."""
_FIRST_HANDLE, _HANDLE_STEP = 0x1000, 16


class HostRuntime:
    """What the slots of the stubs lead to."""

    def __init__(self, soc: str, recorder: Recorder) -> None:
        self._soc = ctypes.create_string_buffer(soc.encode())
        self._recorder = recorder
        self._message = ctypes.create_string_buffer(1)
        self._handles = itertools.count(_FIRST_HANDLE, _HANDLE_STEP)
        self._device = 0
        self._tensors: dict[int, DeviceTensor] = {}
        self._prepared: dict[str, tuple[int, ...]] = {}
        """What the kernels that may be launched outside of operators are given next."""
        self._libc = ctypes.CDLL(None)
        self._libc.posix_memalign.argtypes = [c_void_p, c_size_t, c_size_t]
        self._libc.free.argtypes = [c_void_p]
        self._libc.malloc.argtypes, self._libc.malloc.restype = [c_size_t], c_void_p
        self._kept: list[Any] = []

    def bind(self, slots: Slots, kernels: Iterable[str]) -> None:
        """Lead every slot that has work to do to its method."""
        for point in list_declared(type(self)):
            self._bind(slots, point.name, point.signature(getattr(self, point.method)))
        launch = ctypes.CFUNCTYPE(c_int)
        for kernel in kernels:
            self._bind(slots, kernel, launch(partial(self._launch, kernel)))
        for kernel in DIRECT:
            prepare = describe_preparation(kernel)(partial(self._prepare, kernel))
            self._bind(slots, kernel + WORKSPACE, prepare)

    def _bind(self, slots: Slots, name: str, callback: Any) -> None:  # noqa: ANN401 - a ctypes type
        if name in slots:
            self._kept.append(callback)  # the library only has the address
            slots[name] = ctypes.cast(callback, c_void_p).value or 0

    # The device

    @entry("aclrtGetDeviceCount", takes=(c_void_p,))
    def _count(self, count: int) -> int:
        return store(count, 1, c_uint32)

    @entry("aclrtSetDevice", takes=(c_int32,))
    def _set_device(self, device: int) -> int:
        if device:
            return NO_SUCH_DEVICE
        self._device = device
        return SUCCESS

    @entry("aclrtGetDevice", takes=(c_void_p,))
    def _get_device(self, device: int) -> int:
        return store(device, self._device, c_int32)

    @entry("aclrtGetSocName", gives=c_void_p)
    def _soc_name(self) -> int:
        return ctypes.addressof(self._soc)

    @entry("aclGetRecentErrMsg", gives=c_void_p)
    def _recent_message(self) -> int:
        self._message = ctypes.create_string_buffer(self._recorder.message.encode())
        return ctypes.addressof(self._message)

    @entry("aclGetDeviceCapability", takes=(c_uint32, c_int, c_void_p))
    def _capability(self, _device: int, _what: int, value: int) -> int:
        return store(value, _CORES)

    @entry("aclrtDeviceGetBareTgid", takes=(c_void_p,))
    def _process(self, number: int) -> int:
        return store(number, 1, c_int32)

    @entry("aclrtDeviceCanAccessPeer", takes=(c_void_p,))
    def _no_peer(self, can: int) -> int:
        return store(can, 0, c_int32)

    @entry("aclrtGetSysParamOpt", "aclrtCtxGetSysParamOpt", takes=(c_int, c_void_p))
    def _parameter(self, _which: int, value: int) -> int:
        return store(value, 0)

    @entry("aclrtGetStreamOverflowSwitch", takes=(c_void_p, c_void_p))
    def _overflow_switch(self, _stream: int, value: int) -> int:
        return store(value, 0, c_uint32)

    @entry("aclrtGetPrimaryCtxState", takes=(c_int32, c_void_p, c_void_p))
    def _context_state(self, _device: int, flags: int, active: int) -> int:
        store(flags, 0, c_uint32)
        return store(active, 1, c_int32)

    @entry("aclGetCompileoptSize", takes=(c_int,), gives=c_size_t)
    def _option_size(self, _which: int) -> int:
        return 1

    @entry("aclGetCompileopt", takes=(c_int, c_void_p))
    def _option(self, _which: int, value: int) -> int:
        return store(value, 0, c_char)

    # Memory

    @entry(
        "aclrtMalloc",
        "aclrtMallocAlign32",
        "aclrtMallocHost",
        "aclrtMallocHostWithCfg",
        takes=(c_void_p, c_size_t),
    )
    def _allocate(self, pointer: int, size: int) -> int:
        failed = self._libc.posix_memalign(pointer, _ALIGNMENT, max(size, 1))
        return OUT_OF_MEMORY if failed else SUCCESS

    @entry("aclrtFree", "aclrtFreeHost", takes=(c_void_p,))
    def _release(self, pointer: int) -> int:
        self._libc.free(pointer)
        return SUCCESS

    @entry("aclrtMemcpy", "aclrtMemcpyAsync", takes=(c_void_p, c_size_t, c_void_p, c_size_t))
    def _copy(self, to: int, _room: int, source: int, size: int) -> int:
        ctypes.memmove(to, source, size)
        return SUCCESS

    @entry("aclrtMemset", "aclrtMemsetAsync", takes=(c_void_p, c_size_t, c_int32, c_size_t))
    def _fill(self, to: int, _room: int, value: int, size: int) -> int:
        ctypes.memset(to, value, size)
        return SUCCESS

    @entry("aclrtGetMemInfo", takes=(c_int, c_void_p, c_void_p))
    def _memory(self, _kind: int, free: int, total: int) -> int:
        store(free, _FREE, c_size_t)
        return store(total, _TOTAL, c_size_t)

    # Streams and events: everything has happened when the call returns

    @entry(
        "aclrtCreateStream",
        "aclrtCreateStreamWithConfig",
        "aclrtCreateEventExWithFlag",
        "aclrtCreateEventWithFlag",
        "aclrtGetCurrentContext",
        takes=(c_void_p,),
    )
    def _create(self, handle: int) -> int:
        return store(handle, next(self._handles), c_uint64)

    @entry("aclrtQueryEventStatus", "aclrtQueryEventWaitStatus", takes=(c_void_p, c_void_p))
    def _event_status(self, _event: int, status: int) -> int:
        return store(status, _DONE, c_int32)

    @entry("aclrtStreamQuery", takes=(c_void_p, c_void_p))
    def _stream_status(self, _stream: int, status: int) -> int:
        return store(status, 0, c_int32)

    @entry("aclrtEventElapsedTime", takes=(c_void_p,))
    def _elapsed(self, milliseconds: int) -> int:
        return store(milliseconds, 0.0, c_float)

    # What is passed to kernels

    @entry(
        "aclCreateBoolArray",
        "aclCreateDataBuffer",
        "aclCreateFloatArray",
        "aclCreateIntArray",
        "aclCreateScalar",
        "aclCreateScalarList",
        "aclCreateTensorDesc",
        "aclCreateTensorList",
        "aclopCreateAttr",
        gives=c_void_p,
    )
    def _describe(self) -> int:
        return next(self._handles)

    @entry(
        "aclCreateTensor",
        takes=(
            *(c_void_p, c_uint64, c_int, c_void_p, c_int64),
            *(c_int, c_void_p, c_uint64, c_void_p),
        ),
        gives=c_void_p,
    )
    def _create_tensor(  # noqa: PLR0913, PLR0917 - the function's signature
        self,
        sizes: int,
        dimensions: int,
        dtype: int,
        steps: int,
        offset: int,
        _format: int,
        _storage_sizes: int,
        _storage_dimensions: int,
        data: int | None,
    ) -> int:
        handle = next(self._handles)
        numbers = c_int64 * dimensions
        shape = tuple(numbers.from_address(sizes)) if dimensions else ()
        strides = tuple(numbers.from_address(steps)) if dimensions else ()
        self._tensors[handle] = DeviceTensor(shape, dtype, strides, offset, data or 0)
        return handle

    @entry("aclDestroyTensor", takes=(c_void_p,))
    def _destroy_tensor(self, handle: int) -> int:
        self._tensors.pop(handle, None)
        return SUCCESS

    @entry("aclGetViewShape", takes=(c_void_p, c_void_p, c_void_p))
    def _view_shape(self, handle: int, sizes: int, dimensions: int) -> int:
        shape = self._tensors[handle].shape
        copy = self._libc.malloc(max(1, len(shape)) * ctypes.sizeof(c_int64))  # the caller's
        ctypes.memmove(copy, (c_int64 * len(shape))(*shape), len(shape) * ctypes.sizeof(c_int64))
        store(sizes, copy, c_uint64)
        return store(dimensions, len(shape), c_uint64)

    @entry("aclGetTensorDescDimV2", takes=(c_void_p, c_size_t, c_void_p))
    def _described_size(self, _description: int, _dimension: int, size: int) -> int:
        return store(size, 1)

    def _prepare(self, kernel: str, *arguments: int) -> int:
        self._prepared[kernel] = arguments
        return SUCCESS

    def _launch(self, kernel: str) -> int:
        given = self._prepared.pop(kernel, None)
        if self._recorder.controlled or given is None:
            return self._recorder.launch(kernel)
        from npufix.rewriters.verification.virtual_npu.direct_launches import compute_kernel

        kinds = zip(DIRECT[kernel], given, strict=True)
        arguments = [self._tensors[value] if kind == "t" else value for kind, value in kinds]
        try:
            compute_kernel(kernel, arguments)
        except (RuntimeError, KeyError) as error:  # what a callback raises would be ignored
            self._recorder.message = f"{kernel} has no reference kernel for this: {error}"
            return REFUSED
        self._recorder.launches.append(Launch(kernel, OUTSIDE))
        return SUCCESS

    @entry("aclmdlRICaptureGetInfo", takes=(c_void_p, c_void_p, c_void_p))
    def _capturing(self, _stream: int, status: int, model: int) -> int:
        store(status, 0, c_int32)
        return store(model, 0, c_uint64)

    @entry("aclmdlRICaptureBegin", "aclmdlRICaptureToModelRIBegin", "aclmdlRICaptureTaskGrpBegin")
    def _capture(self) -> int:
        self._recorder.message = (
            "an NPU graph cannot be captured on a virtual NPU: run the code without torch.npu.graph"
        )
        return REFUSED  # what is not supported, torch_npu goes on without

    @entry("aclopCompileAndExecute", "aclopCompileAndExecuteV2", takes=(c_void_p,))
    def _execute(self, kind: int) -> int:
        return self._recorder.launch(read_string(kind))
