"""The table of docs/virtual-npu.md: tiny models of transformers trained on the virtual NPU.

    python -m benchmarks.families --results DIR [FAMILY ...] [--write docs/virtual-npu.md]

Each family trains three steps in float32 and bfloat16, as it is and with ``npufix run``; needs
torch_npu and transformers. What ``DIR`` has already is not trained again. A loss agrees if it is
within 1e-4 in float32 and within 2e-2 in bfloat16, where fused kernels round less often.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

_TRAINING = Path(__file__).with_name("family_training.py")
_RUNS = {
    "plain": ("npufix.rewriters.verification.virtual_npu",),
    "run": ("npufix.advisor", "run", "--on", "virtual-npu", "--quiet"),
}
_CLOSE = {"fp32": 1e-4, "bf16": 2e-2}
_BEGIN, _END = (
    "<!-- families: written by python -m benchmarks.families -->",
    "<!-- families end -->",
)
_Losses = dict[tuple[str, str], list[float] | str]


def main(arguments: list[str]) -> None:
    """Train what is not there, then print the table or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    options.results.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, command in _RUNS.items():
        file = options.results / f"{name}.jsonl"
        known = {family for family, _ in read(file)}
        missing = [family for family in options.families if family not in known]
        if missing:
            _train(command, missing, file)
        found[name] = read(file)
    text = table(found["plain"], found["run"])
    if options.write is None:
        print(text)
        return
    page = options.write.read_text()
    head, _, rest = page.partition(_BEGIN)
    options.write.write_text(f"{head}{_BEGIN}\n{text}\n{_END}{rest.partition(_END)[2]}")


def _train(command: tuple[str, ...], families: list[str], file: Path) -> None:
    with file.open("a") as out:
        subprocess.run(
            [sys.executable, "-m", *command, str(_TRAINING), "npu", *families],
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            stdout=out,
            check=False,
        )


def read(file: Path) -> _Losses:
    """Return the losses, or what was raised, by family and dtype."""
    lines = file.read_text().splitlines() if file.is_file() else []
    rows = [json.loads(line) for line in lines if line.startswith("[")]
    return {(family, dtype): result for family, dtype, result in rows}


def table(plain: _Losses, changed: _Losses) -> str:
    """Return one line for each family: the losses of the steps, and whether ``run`` keeps them."""
    families = list(dict.fromkeys(family for family, _ in plain))
    rows = ["| Family | Losses, float32 | with `run` | Losses, bfloat16 | with `run` |"]
    rows.append("| --- | --- | --- | --- | --- |")
    trained = agreeing = 0
    for family in families:
        cells = [_cells(plain, changed, family, dtype) for dtype in _CLOSE]
        trained += all(isinstance(plain.get((family, dtype)), list) for dtype in _CLOSE)
        agreeing += all(said.startswith(("same", "within")) for _, said in cells)
        rows.append(f"| {family} | {' | '.join(cell for pair in cells for cell in pair)} |")
    summary = (
        f"{trained} of {len(families)} families train in both dtypes; {agreeing} have the same "
        "losses with `npufix run`."
    )
    return "\n".join([summary, "", *rows])


def _cells(plain: _Losses, changed: _Losses, family: str, dtype: str) -> tuple[str, str]:
    before, after = plain.get((family, dtype)), changed.get((family, dtype))
    if not isinstance(before, list):
        return (_short(before), "")
    losses = " ".join(f"{loss:.4f}" for loss in before)
    if not isinstance(after, list):
        return losses, _short(after)
    off = max(abs(a - b) for a, b in zip(before, after, strict=True))
    if off == 0:
        return losses, "same"
    return losses, f"{'within' if off <= _CLOSE[dtype] else 'off by'} {off:.1e}"


def _short(result: object) -> str:
    return "not run" if result is None else str(result)[:80].replace("|", "/")


if __name__ == "__main__":
    main(sys.argv[1:])
