"""Whether a function needs a package that there is for GPUs alone."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import SIMPLE_STATEMENTS, nodes_of, walk

if TYPE_CHECKING:
    from npufix.rewriters.graph.dataflow import FunctionFlow

_ONLY_GPU = frozenset(
    {
        "MinkowskiEngine", "NNPOps", "cupy", "deep_ep", "deep_gemm", "diff_gaussian_rasterization",
        "diff_surfel_rasterization", "k2", "kaolin", "nvdiffrast", "pycuda", "simple_knn",
        "tensorrt", "tensorrt_llm", "tinycudann", "torch_tensorrt", "torchsparse",
    }
)  # fmt: skip


def needs_gpu(flow: FunctionFlow) -> bool:
    """Tell whether a function, or its class, calls a package that there is for no NPU."""
    names = frozenset() if flow.names.tree is None else _list_of_gpu(flow.names.tree)
    code = flow.function if flow.cls is None else flow.cls
    return bool(names) and any(isinstance(n, ast.Name) and n.id in names for n in nodes_of(code))


@lru_cache(maxsize=2)
def _list_of_gpu(module: ast.Module) -> frozenset[str]:
    """Return the names that imports anywhere in a module bind to packages for GPUs."""
    code = walk(module, closed=SIMPLE_STATEMENTS)
    imports = [n for n in code if isinstance(n, ast.Import | ast.ImportFrom)]
    return frozenset(
        (alias.asname or alias.name).partition(".")[0]
        for node in imports
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] in _ONLY_GPU
        and not getattr(node, "level", 0)
    )
