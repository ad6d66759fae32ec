"""What several diagnostics measure alike in the recording of one process.

In comes a ``Recording``, out come rows of kernels, amounts per step and observations. To read in
this order: ``observing`` (words and amounts), ``recorded_cells`` and ``recorded_shapes`` (what a
row says), ``sequences`` and ``kernel_groups`` (which rows belong together), then what one subject
needs: ``pauses``, ``collectives`` and ``matmul_*``, ``fusable``, ``core_time``, ``versions``.
"""
