"""A loader of training data that lets the device wait.

What: ``torch.utils.data.DataLoader`` of training data with worker processes, but without
``pin_memory=True`` or ``persistent_workers=True``, or with two of them; the tables of
OpenMMLab that configure one (``workers_per_gpu``, ``train_dataloader``), with one or two; their
``build_dataloader(..., **kwargs)``, whose workers do not stay; ``TrainingArguments`` of
transformers, whose Trainer starts no worker unless it is told to.

Why it is slow on the NPU: without pinned memory the copy of each batch goes through a buffer of the
driver and the host waits for it, so ``non_blocking=True`` has no effect; workers that do not stay
are started anew in each epoch; and where the training process makes the batches itself, the
device is idle until one is done. DrivingSDK sets these in 36 % of its models: +13 % for FlashOCC.

Safety: the batches are the same, but for what is drawn at random in a worker: each has numbers of
its own. Pinned memory cannot be swapped out, and workers that stay keep their memory, and their copy
of the data set, between the epochs (condition ``host-memory``). More workers than the host has cores
for each NPU are slower.

References: torch.utils.data.DataLoader; ports of FlashOCC and BEVDepth in Ascend DrivingSDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def in_turn(data: Tensor, size: int) -> Tensor:
    """Make one batch after the other."""
    return torch.cat([data[first : first + size] for first in range(0, len(data), size)])


def ahead(data: Tensor, size: int) -> Tensor:
    """Make the same batches beside the steps."""
    return torch.cat(torch.split(data, size))


def inputs(draw: Draw) -> dict[str, Any]:
    """Return rows, and how many of them make a batch."""
    import torch

    return {"data": draw.floats(5, 3, dtype=torch.float32), "size": draw.integer(1, 4)}


MEMORY = Condition(
    "host-memory",
    "the host has cores and memory left for workers that stay, and for pinned batches",
    unknown,
)

_BY_ITSELF = """
from transformers import TrainingArguments

arguments = TrainingArguments(output_dir="out", num_train_epochs=3, dataloader_num_workers=0)
"""

_OF_CALLERS = """
from torch.utils.data import DataLoader


def build_dataloader(data, size, workers, shuffle=True, **kwargs):
    sampler = DistributedGroupSampler(data, size) if shuffle else DistributedSampler(data)
    count = workers
    return DataLoader(
        data, size, sampler=sampler, num_workers=count, pin_memory=False, **kwargs
    )
"""

RULE = Substitution(
    id="NPU270",
    name="loader-settings",
    summary="a loader of training data that lets the device wait",
    table="affinity",
    forms=(Form(in_turn, ahead, inputs, (MEMORY,)),),
    search="data-loaders",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=(
        # everything is set
        """
from torch.utils.data import DataLoader


def train_loader(data, n):
    return DataLoader(data, 4, num_workers=8, pin_memory=True, persistent_workers=True)
""",
        # not for training
        """
from torch.utils.data import DataLoader


def val_loader(data):
    return DataLoader(data, 4, num_workers=8)
""",
        # configured for tests
        """
test_dataloader = dict(batch_size=1, num_workers=2, dataset=dict(type="Scenes"))
""",
        # four were counted, and what is in memory needs none
        """
from torch.utils.data import DataLoader


def train_loader(data, array):
    more = DataLoader(Rows(torch.from_numpy(array)), 8, shuffle=True)
    return DataLoader(data, 8, num_workers=4, pin_memory=True, persistent_workers=True), more
""",
        # filled while it is read
        """
from torch.utils.data import DataLoader


def train_off_policy(memory, steps):
    replay_data = ReplayDataset(memory, 64)
    return DataLoader(replay_data, batch_size=None), DataLoader(RolloutDataset(memory), shuffle=True)
""",
        # who writes it has a reason, and one batch needs no workers
        """
from torch.utils.data import DataLoader


def train_loader(data, args):
    first = next(iter(DataLoader(data, 4, shuffle=True, num_workers=0)))
    return first, DataLoader(data, 4, num_workers=args.workers, pin_memory=False)
""",
        # one pass, and workers that would be started anew in each call
        """
from torch.utils.data import DataLoader


class Agent:
    def update(self, train_data):
        loader = DataLoader(train_data, 4, shuffle=True)
        for _ in range(3):
            for batch in loader:
                self.step(batch)

    def refine(self, train_data):
        train_loader = DataLoader(train_data, 4, num_workers=2)
        for number, batch in enumerate(train_loader):
            self.step(batch)
""",
        # enough of them
        """
from transformers import TrainingArguments

arguments = TrainingArguments(output_dir="out", num_train_epochs=3, dataloader_num_workers=4)
""",
        # to debug
        """
from torch.utils.data import DataLoader


def debug_train(data):
    return DataLoader(data, 4, shuffle=True, num_workers=2)


def train_loader(data):
    return DataLoader(data, 4, shuffle=True, num_workers=0)
""",
        """
data = dict(samples_per_gpu=1, workers_per_gpu=0, train=dict(type="Scenes"))
""",
        # counted as well
        """
data = dict(samples_per_gpu=1, workers_per_gpu=4, train=dict(type="Scenes"))
""",
        # nothing is shuffled, and one setting is decided later
        """
from torch.utils.data import DataLoader


def make_loaders(data, cuda, loader_workers):
    settings = {"batch_size": 4, "shuffle": True, "num_workers": 4}
    if cuda:
        settings["pin_memory"] = True
    rest = DataLoader(data, 4, shuffle=False, num_workers=loader_workers)
    return DataLoader(data, **settings), rest
""",
        # callers say whether workers stay, and a builder for tests alone
        """
from torch.utils.data import DataLoader


def build_dataloader(data, workers, shuffle=True, persistent_workers=False, **kwargs):
    kwargs["persistent_workers"] = persistent_workers
    return DataLoader(data, shuffle=shuffle, num_workers=workers, **kwargs)


def build_test_loader(data, workers, shuffle=False, **kwargs):
    return DataLoader(data, shuffle=shuffle, num_workers=workers, **kwargs)
""",
        # settings come from elsewhere, and a loader of one's own
        """
from torch.utils.data import DataLoader


def train_loader(data, settings, loader):
    return DataLoader(data, **settings), loader(data, num_workers=4)
""",
    ),
    rewritten=(
        Rewritten(_BY_ITSELF, _BY_ITSELF),
        Rewritten(_OF_CALLERS, _OF_CALLERS),
        # pinned for a GPU alone
        Rewritten(
            """
import torch


def train(data, cfg, device):
    return torch.utils.data.DataLoader(
        data, num_workers=cfg.workers, shuffle=True, pin_memory=device.type == "cuda"
    )
""",
            """
import torch


def train(data, cfg, device):
    return torch.utils.data.DataLoader(
        data,
        num_workers=cfg.workers,
        shuffle=True,
        pin_memory=device.type != "cpu",
        persistent_workers=cfg.workers > 0,
    )
""",
        ),
        Rewritten(
            """
from torch.utils.data import DataLoader


def build_loader(data, sampler):
    return DataLoader(data, 8, sampler=sampler, num_workers=4, drop_last=True)
""",
            """
from torch.utils.data import DataLoader


def build_loader(data, sampler):
    return DataLoader(
        data,
        8,
        sampler=sampler,
        num_workers=4,
        drop_last=True,
        pin_memory=True,
        persistent_workers=True,
    )
""",
        ),
        Rewritten(
            """
from torch.utils.data import DataLoader


def make(train_set, args):
    train_loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        num_workers=args.workers,
    )
    return train_loader
""",
            """
from torch.utils.data import DataLoader


def make(train_set, args):
    train_loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=True,
        persistent_workers=args.workers > 0,
    )
    return train_loader
""",
        ),
        Rewritten(
            """
from torch.utils.data import DataLoader


def train(model, data, epochs):
    loader = DataLoader(data, 8, num_workers=4)
    for epoch in range(epochs):
        for batch in loader:
            model(batch)
""",
            """
from torch.utils.data import DataLoader


def train(model, data, epochs):
    loader = DataLoader(
        data, 8, num_workers=4, pin_memory=True, persistent_workers=True
    )
    for epoch in range(epochs):
        for batch in loader:
            model(batch)
""",
        ),
        # settings in a dictionary, and shuffled unless a sampler does it
        Rewritten(
            """
from torch.utils.data import DataLoader


def make(data, sampler, args):
    settings = {
        "batch_size": args.size,
        "num_workers": args.workers,
        "shuffle": sampler is None,
    }
    return DataLoader(data, sampler=sampler, **settings)
""",
            """
from torch.utils.data import DataLoader


def make(data, sampler, args):
    settings = {
        "batch_size": args.size,
        "num_workers": args.workers,
        "shuffle": sampler is None,
        "pin_memory": True,
        "persistent_workers": args.workers > 0,
    }
    return DataLoader(data, sampler=sampler, **settings)
""",
        ),
        Rewritten(
            """
data = dict(samples_per_gpu=1, workers_per_gpu=2, train=dict(type="Scenes"))
""",
            """
data = dict(samples_per_gpu=1, workers_per_gpu=8, train=dict(type="Scenes"))
""",
        ),
        Rewritten(
            """
from torch.utils.data import DataLoader


def make(data):
    return DataLoader(data, 8, shuffle=True, num_workers=2)
""",
            """
from torch.utils.data import DataLoader


def make(data):
    return DataLoader(
        data, 8, shuffle=True, num_workers=8, pin_memory=True, persistent_workers=True
    )
""",
        ),
        Rewritten(
            """
from transformers import TrainingArguments

arguments = TrainingArguments(output_dir="out", num_train_epochs=3)
""",
            """
from transformers import TrainingArguments

arguments = TrainingArguments(
    output_dir="out",
    num_train_epochs=3,
    dataloader_num_workers=8,
    dataloader_persistent_workers=True,
)
""",
        ),
    ),
)
