"""Settings in YAML: optimizers and loaders of transformers, LLaMA-Factory, Hydra and Lightning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.programs.launchers import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KEY = re.compile(r"^(\s*)(?:- )?([\w.]+)(\s*:\s*)(['\"]?)([\w.]+)\4(?=\s|$)")
_SLOW = {
    ("optim", "adamw_torch"): "adamw_torch_fused",
    ("dataloader_pin_memory", "false"): "true",
    ("dataloader_num_workers", "0"): "8",
    ("dataloader_num_workers", "1"): "8",
    ("dataloader_num_workers", "2"): "8",
}
"""Keys of ``TrainingArguments``, a slow value, and what to take instead."""
_TARGET = "torch.optim.AdamW"
_TARGETS = frozenset({"_target_", "_component_"})
"""Keys of Hydra and torchtune beside which the arguments stand."""
_WITH_ARGUMENTS = "class_path"
"""That of Lightning and jsonargparse: they stand below ``init_args``."""
_SCALED = re.compile(
    r"\s*(fp16\s*:\s*true|(mixed_)?precision\s*:\s*['\"]?(16-mixed|16|(amp_)?fp16)\b)",
    re.IGNORECASE,
)
_MAY_BE_SCALED = re.compile(r"(?im)^\s*(use_)?amp\s*:\s*(true\b|\n\s+enabled\s*:\s*true\b)")
"""What turns on a GradScaler as well in some programs, whatever the dtype: ``amp: {enabled}``."""
_DECIDED = re.compile(r"fused|foreach|capturable|differentiable")


def find_yaml_settings(lines: Sequence[str]) -> Iterator[Setting]:
    """Yield the lines with a slow value, and optimizers that a class path names, not fused."""
    if any(map(_SCALED.match, lines)) or _MAY_BE_SCALED.search("".join(lines)):
        return  # a GradScaler, which the fused optimizer does not know
    for number, line in enumerate(lines, 1):
        found = _KEY.match(line)
        if found is None:
            continue
        indent, key, value = found[1], found[2], found[5]
        new = _SLOW.get((key, value.lower()))
        if new is not None:
            yield Setting(
                number, line[: found.start(5)] + new + line[found.end(5) :], replaces=True
            )
        elif value == _TARGET and not _is_decided(lines, number, indent):
            first = indent + (" " * 2 if line.lstrip().startswith("- ") else "")
            end = "\r\n" if line.endswith("\r\n") else "\n"
            if key in _TARGETS:
                yield Setting(number, f"{line.rstrip()}{end}{first}fused: true{end}")
            elif key == _WITH_ARGUMENTS and number < len(lines):
                below = lines[number].rstrip()
                if below == f"{first}init_args:":  # the first of several lines of them
                    inner = _indent_below(lines[number + 1 :], first)
                    yield Setting(number + 1, f"{below}{end}{inner}fused: true{end}")


def _indent_below(lines: Sequence[str], indent: str) -> str:
    """Return how far the entries of a table are moved in, whose key is moved in so far."""
    entry = next((line for line in lines if line.strip() and line.lstrip()[0] != "#"), "")
    inner = entry[: len(entry) - len(entry.lstrip())]
    return inner if len(inner) > len(indent) else indent + " " * 2


def _is_decided(lines: Sequence[str], number: int, indent: str) -> bool:
    """Tell whether the table that a line belongs to says something about fusing."""
    for line in lines[number:]:
        if line.strip() and not line.startswith(indent + " ") and not line.startswith(indent):
            return False
        if _DECIDED.match(line.strip()):
            return True
    return False
