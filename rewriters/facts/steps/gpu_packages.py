"""Whether a function needs a package that there is for GPUs alone."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import SIMPLE_STATEMENTS, nodes_of, walk

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from npufix.rewriters.graph.dataflow import FunctionFlow

_ONLY_GPU = frozenset(
    {
        "MinkowskiEngine", "NNPOps", "cupy", "deep_ep", "deep_gemm", "diff_gaussian_rasterization",
        "diff_surfel_rasterization", "k2", "kaolin", "nvdiffrast", "pycuda", "simple_knn",
        "tensorrt", "tensorrt_llm", "tinycudann", "torch_tensorrt", "torchsparse",
    }
)  # fmt: skip
_WRAPPED = re.compile(r"(^|[._])(cutlass|deep_?gemm|marlin|sageattn|sageattention)([._]|$)")
"""What modules are called that hold such kernels, of a program as well: ``.cutlass_fp4.grouped``.

A function that calls one is for GPUs; other methods of its class may be for whoever has none.
"""


def needs_gpu(flow: FunctionFlow) -> bool:
    """Tell whether a function, or its class, calls a package that there is for no NPU."""
    if flow.names.tree is None:
        return False
    names, wrapped = _list_of_gpu(flow.names.tree)
    return _mentions(flow.function if flow.cls is None else flow.cls, names) or _mentions(
        flow.function, wrapped
    )


def _mentions(code: ast.AST, names: AbstractSet[str]) -> bool:
    return bool(names) and any(isinstance(n, ast.Name) and n.id in names for n in nodes_of(code))


@lru_cache(maxsize=2)
def _list_of_gpu(module: ast.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that imports in a module bind to packages for GPUs, or to wrappers."""
    code = walk(module, closed=SIMPLE_STATEMENTS)
    imports = [n for n in code if isinstance(n, ast.Import | ast.ImportFrom)]
    only, wrapped = set[str](), set[str]()
    for source, alias in [(node, alias) for node in imports for alias in node.names]:
        module_name = str(getattr(source, "module", None) or alias.name)
        name = (alias.asname or alias.name).partition(".")[0]
        package = module_name.partition(".")[0]
        if not getattr(source, "level", 0) and (
            package in _ONLY_GPU or (package == "numba" and "cuda" in {name, alias.name})
        ):
            only.add(name)
        if _WRAPPED.search(module_name):
            wrapped.add(name)
        if alias.name == "_C" and isinstance(source, ast.ImportFrom) and source.level:
            # a package that is compiled for one operator: ``class Rasterize(Function)`` calls it
            functions = (n for n in module.body if isinstance(n, ast.ClassDef) and n.bases)
            only |= {name, *(f.name for f in functions if _mentions(f, frozenset({name})))}
    kernels = (f for f in module.body if isinstance(f, ast.FunctionDef))
    compiled = {f.name for f in kernels if any(_mentions(d, only) for d in f.decorator_list)}
    return frozenset(only | compiled), frozenset(wrapped)  # ``@cuda.jit def loss_kernel(...)``
