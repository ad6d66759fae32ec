"""Files that no training or inference step runs, by their paths: tests, examples, converters."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_FOLDERS = re.compile(
    r"(unit_?)?tests?(ing)?|docs?|documentation|examples?|(.*_)?demos?|tutorials?|benchmarks?"
    r"|onnx|exporters?|export|converters?|conversions?|deploy(ment)?"
    r"|(.*_)?(tensorrt|trt|trtllm)(_.*)?|analysis(_tools)?"
    r"|eval(uation|uators?)?|metrics?|.*_benchmark"
    r"|datasets?|dataloaders?|data_(loading|loaders?|processing|utils)"
)
_FILES = re.compile(
    r"test_.*|.*_tests?|conftest|setup|.*_(example|demo)"
    r"|(.*_)?(export(er)?|onnx|torchscript|tensorrt|coreml)(_.*)?|convert_.*"
    r"|(.*_)?metrics|eval(uate|uation|uator)?(_.*)?|.*_eval(uate|uation|uator)?"
    r"|(.*_)?(hf|ckpt|custom)_?(2|to)_?(hf|ckpt|custom|mcore|megatron|pt)"
    r"|(.*_)?(dataset|dataloader|data_module|datamodule|data_util|collat(or|e))s?"
    r"|((image|video|audio)_)?processing_.*|feature_extraction_.*|tokenization_.*"
)


def is_cold(relative: str) -> bool:
    """Tell whether a file, by its path below the source, holds nothing that a step runs.

    ``tests/test_norm.py``, ``docs/conf.py``, ``convert_checkpoint.py`` and ``datasets/coco.py`` are
    such; a file or a folder that the user has named is not judged by what stands above it.
    """
    path = PurePosixPath(relative)
    above = path.parts[:-1]
    return bool(_FILES.fullmatch(path.stem)) or any(map(_FOLDERS.fullmatch, above))
