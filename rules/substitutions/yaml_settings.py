"""Settings in YAML that update in small kernels, or load in the process that trains.

What: ``optim: adamw_torch``, ``dataloader_num_workers`` of two or fewer and
``dataloader_pin_memory: false`` in configurations for transformers and LLaMA-Factory;
``torch.optim.AdamW`` without ``fused`` as ``_target_`` of Hydra, ``_component_`` of torchtune and
``class_path`` of Lightning.

Why it is slow on the NPU: as in the rules configured-optimizer and loader-settings: AdamW launches
about ten kernels where one ApplyAdamWV2 per parameter would do, and the device waits for batches.

Safety: the order of roundings alone. A file that asks for float16 is left alone: there a GradScaler
tells the optimizer what torch_npu ignores, as one does in some programs whatever the dtype
(``no-grad-scaler``, and ``amp: enabled: true`` is left alone). Parameters have to be on the NPU when it
is made (``parameters-on-npu``), and workers need cores and memory (``host-memory``).

References: TrainingArguments of transformers; torch.optim.AdamW; Ascend DrivingSDK, where 48 % of the
models have a fused optimizer and 36 % other settings of the loader.
"""

from __future__ import annotations

from npufix.rules.shared.operands.optimizer_settings import NO_SCALER, ON_NPU
from npufix.rules.substitution import Form, Rewritten, Substitution
from npufix.rules.substitutions.configured_optimizer import by_default, fused, inputs
from npufix.rules.substitutions.loader_settings import MEMORY

RULE = Substitution(
    id="NPU178",
    name="settings-in-yaml",
    summary="a configuration in YAML with an optimizer in small kernels, or few loading processes",
    table="fusion",
    forms=(Form(by_default, fused, inputs, (NO_SCALER, ON_NPU, MEMORY)),),
    search="yaml-settings",
    files=(".yaml", ".yml"),
    replaces=("Add", "Addcdiv", "Addcmul", "Lerp", "Mul", "Muls", "RealDiv", "Sqrt"),
    becomes=("ApplyAdamWV2",),
    passes=(7, 0),
    requires="torch_npu>=2.1",
    unseen="it is a configuration, and what reads it is not run here",
    valid=(
        # decided already
        """optimizer:
  _target_: torch.optim.AdamW
  lr: 1e-4
  foreach: true
""",
        # a GradScaler
        """optim: adamw_torch
fp16: true
""",
        # the one of Lightning
        """trainer:
  precision: "16-mixed"
optimizer:
  class_path: torch.optim.AdamW
  init_args:
    lr: 1e-4
""",
        # who turns on autocast may turn on a GradScaler by the same setting
        """optim:
  amp:
    enabled: True
    amp_dtype: bfloat16
  optimizer:
    _target_: torch.optim.AdamW
""",
        # the one of accelerate
        """mixed_precision: fp16
optimizer:
  _target_: torch.optim.AdamW
  lr: 1e-4
""",
        # decided below
        """optimizer:
  class_path: torch.optim.AdamW
  init_args:
    lr: 1e-4
    fused: false
""",
        # another optimizer, and workers that were counted
        """optim: adafactor
dataloader_num_workers: 4
""",
    ),
    rewritten=(
        Rewritten(
            """bf16: true
optim: adamw_torch
dataloader_num_workers: 2
""",
            """bf16: true
optim: adamw_torch_fused
dataloader_num_workers: 8
""",
        ),
        Rewritten(
            """optimizer:
  _target_: torch.optim.AdamW
  lr: 1e-4
""",
            """optimizer:
  _target_: torch.optim.AdamW
  fused: true
  lr: 1e-4
""",
        ),
        Rewritten(
            """optimizer:
    class_path: torch.optim.AdamW
    init_args:
        lr: 1e-4
""",
            """optimizer:
    class_path: torch.optim.AdamW
    init_args:
        fused: true
        lr: 1e-4
""",
        ),
        Rewritten(
            """trainer:
  precision: bf16-mixed
optimizer:
  class_path: torch.optim.AdamW
  init_args:
    lr: 1e-4
""",
            """trainer:
  precision: bf16-mixed
optimizer:
  class_path: torch.optim.AdamW
  init_args:
    fused: true
    lr: 1e-4
""",
        ),
        Rewritten(
            """optimizer:
  _component_: torch.optim.AdamW
  lr: 2e-5
""",
            """optimizer:
  _component_: torch.optim.AdamW
  fused: true
  lr: 2e-5
""",
        ),
    ),
)
