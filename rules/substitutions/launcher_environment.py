"""A script that starts a program on NPUs without the settings that most of them have.

What: a script of the shell that mentions Ascend and calls ``torchrun``, ``accelerate launch``,
``deepspeed`` or ``python train.py``, and leaves ``TASK_QUEUE_ENABLE``, ``CPU_AFFINITY_CONF``,
``PYTORCH_NPU_ALLOC_CONF`` or ``COMBINED_ENABLE`` as they are; or that makes every launch wait
(``ASCEND_LAUNCH_BLOCKING=1``) and logs everything (``ASCEND_GLOBAL_LOG_LEVEL=0``).

Why it is slow on the NPU: with ``TASK_QUEUE_ENABLE=2`` a second thread prepares operators while the
first launches; bound to cores of its own (``CPU_AFFINITY_CONF``) neither is moved about by the system.
Without ``expandable_segments`` memory in pieces is given back to the driver, which the host waits
for. HiVT went from 402 to 645 frames a second by settings alone.

Safety: nothing that is computed changes. A container or another launcher may set the same variables,
and other programs may be bound to the same cores (condition ``environment-is-free``). A script that
reads another one of the project (``source env.sh``) gets no new variables: they may be there.

References: environment variables of Ascend Extension for PyTorch; 61 models of Ascend DrivingSDK, of
which 98, 90, 46 and 57 % set these four.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    from torch import Tensor


def one_by_one(x: Tensor, kernels: int) -> Tensor:
    """Launch a kernel when the one before is prepared."""
    for number in range(kernels):
        x = x * 2 + number
    return x


def queued(x: Tensor, kernels: int) -> Tensor:
    """Prepare all of them, then launch them in the same order."""
    for number in list(range(kernels)):
        x = x * 2 + number
    return x


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, and how many kernels are launched."""
    import torch

    return {"x": draw.floats(3, dtype=torch.float32), "kernels": draw.integer(0, 4)}


FREE = Condition(
    "environment-is-free",
    "nothing else sets these variables for the run, and no other program is bound to its cores",
    unknown,
)

RULE = Substitution(
    id="NPU273",
    name="launcher-environment",
    summary="a script that starts a program on NPUs without the settings that most of them have",
    table="affinity",
    forms=(Form(one_by_one, queued, inputs, (FREE,)),),
    search="environment",
    files=(".sh", ".bash"),
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    unseen="it is about how the program is started, which no run of a function shows",
    valid=(
        # not for an NPU
        """#!/bin/bash
export NCCL_DEBUG=INFO
torchrun --nproc_per_node=8 train.py
""",
        # the settings may be in the other script
        """#!/bin/bash
source scripts/env_npu.sh
torchrun --nproc_per_node=8 train.py --device npu
""",
        # nothing is started
        """#!/bin/bash
source /usr/local/Ascend/ascend-toolkit/set_env.sh
pip install torch_npu
python setup.py install
""",
        # switched off by the author, who had a reason
        """#!/bin/bash
export TASK_QUEUE_ENABLE=0 CPU_AFFINITY_CONF=1 COMBINED_ENABLE=1
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
torchrun --nproc_per_node=8 train.py --device npu
""",
        """#!/bin/bash
source scripts/env_npu.sh
export TASK_QUEUE_ENABLE=0
torchrun --nproc_per_node=8 train.py --device npu
""",
        # all are set
        """#!/bin/bash
export TASK_QUEUE_ENABLE=2 CPU_AFFINITY_CONF=2 COMBINED_ENABLE=1
export PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:512
torchrun --nproc_per_node=8 train.py --device npu
""",
    ),
    rewritten=(
        Rewritten(
            """#!/bin/bash
source /usr/local/Ascend/ascend-toolkit/set_env.sh
export TASK_QUEUE_ENABLE=1  # two threads
torchrun --nproc_per_node=8 \\
    train.py --config base.yaml
""",
            """#!/bin/bash
source /usr/local/Ascend/ascend-toolkit/set_env.sh
export TASK_QUEUE_ENABLE=2  # two threads
export CPU_AFFINITY_CONF=1
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export COMBINED_ENABLE=1
torchrun --nproc_per_node=8 \\
    train.py --config base.yaml
""",
        ),
        Rewritten(
            """export ASCEND_RT_VISIBLE_DEVICES=0
export ASCEND_LAUNCH_BLOCKING=1
source ./env.sh
python train.py
""",
            """export ASCEND_RT_VISIBLE_DEVICES=0
export ASCEND_LAUNCH_BLOCKING=0
source ./env.sh
python train.py
""",
        ),
    ),
)
