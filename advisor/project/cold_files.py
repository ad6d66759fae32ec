"""Files that no training or inference step runs, by their paths: tests, examples, converters."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npufix.advisor.project.source_tree import SourceFile

_FOLDERS = re.compile(
    r"(\w+_)?(rocm|hpu|xpu|tpu|mlu|maca|musa|gcu|dcu|camb(ricon)?|kunlun|gaudi)(_\w+)?"
    r"|docs?|documentation|examples?|(.*_)?demos?|(.*_)?debug(ging)?|tutorials?|benchmarks?"
    r"|transfer_(dock|queue)|indexing|io|onnx|exporters?|export|converters?|conversions?|deploy(ment)?"
    r"|(.*_)?gptq(_.*)?|(.*_)?(tensorrt|trt|trtllm)(_.*)?|analysis(_tools)?"
    r"|(\w*[a-z]E|e)val(uation|uators?|_\w+)?|metrics?|.*_benchmark"
    r"|loggers?|data(sets?|loaders?|parsers?)|data_(loading|loaders?|processing|utils)|process(ing)?_data"
    r"|model_repo(sitory)?(_\w+)?"  # of a Triton server, for GPUs
    r"|preprocess(ing|ors?)?|processors?|annotators?|transforms|visuali[sz](e|ation|ers?)"
)
_OF_MODELS = frozenset(
    {"engine", "layers", "losses", "modeling", "models", "modules", "structures"}
)
"""What stands in a package that is called after a benchmark: ``maskrcnn_benchmark/modeling``."""
_TESTS = re.compile(r"(unit_?)?tests?(ing)?(_\w+)?|e2e")
_FILES = re.compile(
    r"predict|tests?|test_.*|.*_tests?|conftest|setup|hubconf|(.*_)?(example|demo)|dataset_(mapper|utils?)"
    r"|(.*_)?(backup|bak|deprecated)|(.*_)?fallback"
    r"|(data_)?preprocess(ing|or)?(_utils?)?|(.*_)?calibrat(e|ion|or)(_.*)?"
    r"|(.*_)?(export(er)?|onnx|torchscript|tensorrt|coreml|m?ncnn|mnn)(_.*)?|convert_.*"
    r"|(.*_)?transfer_(dock|queue)(_.*)?"  # what processes hand to each other
    r"|(.*_)?(interpret(ability|ation)|explain(ability|ers?))(_.*)?"
    r"|visuali[sz]e_.*|colou?rmaps?|probes?|(calculate|compute|generate|get|make)_\w*(stats|statistics|cmvn)\w*"
    r"|(.*_)?(vis|viz|visuali[sz](e|ers?|ation)|plot(s|ting|ter)?)(_(utils?|tools?))?"
    r"|(.*_)?metrics?(_(log(s|ging|gers?)|track(ing|ers?)|utils?))?|(.*_)?accuracy(_.*)?|fid(_.*)?|(.*_)?inception_?score(_.*)?|eval(uate|uation|uator)?(_.*)?|.*_eval(uate|uation|uator)?"
    r"|(.*_)?(hf|ckpt|custom)_?(2|to)_?(hf|ckpt|custom|mcore|megatron|pt)"
    r"|(.*_)?(dataset|dataloader|dataparser|data_module|datamodule|data_util|collat(or|e))s?"
    r"|(.*_)?(rocm|hpu|xpu|tpu|mlu|maca|musa|camb(ricon)?)(_(ops|utils|backend))?|.*_cpu"
    r"|(.*_)?profil(er|ing)(_.*)?|bench(mark)?_.*|.*_bench(mark)?"
    r"|data_(transforms?|pipelines?|ops)(_.*)?|(.*_)?(deep_?gemm|deep_?ep|flashinfer|cutlass|cupy)(_.*)?"
    r"|((image|video|audio)_)?processing_.*|feature_extraction_.*|tokenization_.*|tokenizers?"
)
_OF_DATA = re.compile(
    r"(.*_)?(data_?sets?|data_?loaders?|data_?modules?)(_\w+)?|data_\w+|process(ing)?_data"
)
"""What stands around the loaders of training data."""


def is_cold(relative: str, *, loads_data: bool = False) -> bool:
    """Tell whether a file, by its path below the source, holds nothing that a step on an NPU runs.

    ``tests/test_norm.py``, ``docs/conf.py``, ``convert_checkpoint.py`` and ``datasets/coco.py`` are
    such; a file or a folder that the user has named is not judged by what stands above it. With
    ``loads_data`` it is asked about a loader, which stands in ``datasets/loader.py``.
    """
    path = PurePosixPath(relative)
    name = path.stem.replace("-", "_")
    folders = path.parts[:-1]
    cold = [
        part
        for at, part in enumerate(folders)
        if _FOLDERS.fullmatch(part.lstrip("_"))
        if not (part.endswith("_benchmark") and _OF_MODELS & {*folders[at + 1 :]})
    ]
    cold += [name] if _FILES.fullmatch(name) else []
    if loads_data:
        cold = [part for part in cold if not _OF_DATA.fullmatch(part)]
    return bool(cold) or is_test(relative)


_FOR_NPU = re.compile(r"npu|ascend\w*|dlinfer|_310p")
_GPU_FILE = re.compile(r"(^|[/_])(?:gpu|cuda)((?:_[^/]*)?\.py$)")
_FOR_GPU = re.compile(r"(\w+_)?(cuda|gpu|nvidia|triton)")


def made_for_gpus(files: Iterable[str]) -> frozenset[str]:
    """Return the folders and files beside which one for NPUs stands.

    ``kernels/cuda`` beside ``kernels/ascend``, ``model_gpu.py`` beside ``model_npu.py``.
    """
    paths = frozenset(files)
    folders = {folder for file in paths for folder in PurePosixPath(file).parents}
    for_npu = {folder.parent for folder in folders if _FOR_NPU.fullmatch(folder.name)}
    own = {str(f) for f in folders if _FOR_GPU.fullmatch(f.name) and f.parent in for_npu}
    twins = {path: PurePosixPath(path) for path in paths if _GPU_FILE.search(path)}
    own |= {p for p, at in twins.items() if str(at.with_name(_as_npu(at.name))) in paths}
    return frozenset(own)


_LOADS = re.compile(r"(.*_)?(data_?set|data_?loader|data_?module|collat(or|e))s?\.py")


_PLAIN = re.compile(r"(.*_)?(naive|ref(erence)?)(_impl(ementation)?|_ops|_torch)?")


def made_to_compare(files: Mapping[str, SourceFile]) -> frozenset[str]:
    """Return the files whose functions fused ones are held to: ``ops/scan/naive.py``.

    Where another file calls one of them, in a branch that has no fused one, it is a step's own.
    """
    defined = {
        name: frozenset(re.findall(r"^(?:def|class) (\w+)", file.text, re.MULTILINE))
        for name, file in files.items()
        if file.is_python and _PLAIN.fullmatch(PurePosixPath(name).stem)
    }
    if not defined:
        return frozenset()
    every = frozenset().union(*defined.values())
    others = (f.text for n, f in files.items() if n not in defined and not is_cold(n))
    called = {w for text in others for w in re.findall(r"\b(\w+)\(", text) if w in every}
    return frozenset(name for name, own in defined.items() if own.isdisjoint(called))


_DEFINES = re.compile(r"^class \w+\([^)]*(Dataset|DataModule)\b", re.MULTILINE)


def made_around_loaders(files: Mapping[str, SourceFile]) -> frozenset[str]:
    """Return the folders called ``data`` in which, or below which, a data set or a loader stands.

    What else stands there works on samples of the host: ``data/augmentation.py``, and
    ``data/pad.py`` beside ``data/module/training.py`` with ``class Samples(Dataset)``.
    """
    found = set[str]()
    for name, file in files.items():
        path = PurePosixPath(name)
        above = [p for p in path.parents if p.name == "data"]
        below = _OF_MODELS & {*path.parts[path.parts.index("data") :]} if above else ()
        if above and not below and (_LOADS.fullmatch(path.name) or _DEFINES.search(file.text)):
            found.update(map(str, above))
    return frozenset(found)


def _as_npu(name: str) -> str:
    return _GPU_FILE.sub(r"\1npu\2", name)


def is_test(relative: str) -> bool:
    """Tell whether a file, by its path below the source, belongs to the tests."""
    return any(map(_TESTS.fullmatch, PurePosixPath(relative).parts[:-1]))
