"""Stand-ins for torch_npu and MindSpeed: real schemas in front of reference kernels on CPU.

``npu_operators.install("2.7.1")`` puts a module ``torch_npu`` into ``sys.modules``, with the
operators and schemas of that version (``schemas.json``), their gradients (``autograd``), its
optimisers (``fused_optimizers``, which compute with ``fused_updates``) and the functions of
MindSpeed (``mindspeed_functions``), and einops where it is missing (``einops_functions``).
``checked_operators`` keeps some of torch from reading beyond their operands. Every kernel that runs
is noted for the verdict.
"""
