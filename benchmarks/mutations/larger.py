"""Whether two versions of a function differ on larger inputs: found without the judge.

``python -m benchmarks.mutations.larger`` reads a question as JSON and prints the difference, or
nothing. It takes the arguments that the verifier's search finds for the original, makes them
larger, each axis for itself and all of them, and compares as one would by hand, to a thousandth.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_FACTORS = (5, 17, 41)
_SECONDS = 120
_FAR = 1e-3
_MOST = 1 << 22
"""Elements of a call."""


def ask(question: dict[str, Any]) -> str:
    """Return how the two differ, empty if they do not, in a process of its own.

    Raises:
        RuntimeError: the check itself failed, which is no answer.

    """
    command = [sys.executable, "-m", "benchmarks.mutations.larger"]
    try:
        done = subprocess.run(
            command, input=json.dumps(question), text=True, capture_output=True,
            timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no answer within {_SECONDS} s") from error
    if done.returncode and not done.stdout.strip():
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def main() -> None:
    """Answer one question."""
    import torch

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.calls.coverage import LinesToCover
    from npufix.rewriters.verification.inputs.search import search
    from npufix.rewriters.verification.inputs.target import CallCase
    from npufix.rewriters.verification.judge.versions import load_version

    torch.set_num_threads(1)
    job = Job(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in json.load(sys.stdin).items()}
    )
    original = load_version(job, job.original, "original").on_host()
    changed = load_version(job, job.patched, "patched").on_host()
    wanted = LinesToCover(job.original, original.loaded.filename, job.lines_original)
    for assignment in search(original, wanted, job, lambda *_: True).assignments:
        for larger in _larger(assignment):
            for training in (True, False) if original.has_modes else (True,):
                case = CallCase(larger, seed=11, training=training)
                if case.size > _MOST:
                    continue
                text = _differ(*(_look(target, case) for target in (original, changed)))
                if text:
                    print(f"{text}, for {case}".replace("\n", " "))
                    return


def _look(target: Any, case: Any) -> Any:  # noqa: ANN401 - of npufix
    import torch

    from npufix.rewriters.verification.calls.observe import observe

    try:
        return observe(target.prepare(case, torch.float32), "leaf", 11, seconds=30.0)
    except Exception as error:  # noqa: BLE001 - of their code, as far as it has come
        return error


def _larger(assignment: Any) -> Iterator[Any]:  # noqa: ANN401 - of npufix
    from dataclasses import replace

    from npufix.rewriters.verification.calls.values import list_dimensions, resize

    yield assignment
    sizes = [size for size in list_dimensions(assignment.specs) if size > 1]
    for old, factor in itertools.product(sizes, _FACTORS):
        yield replace(assignment, specs=resize(assignment.specs, old, old * factor))
        yield replace(assignment, specs=resize(assignment.specs, old, old * factor + 1))


def _differ(before: Any, after: Any) -> str:  # noqa: ANN401 - records, or errors
    if isinstance(before, Exception) or before.error:
        return ""
    if isinstance(after, Exception) or after.error:
        return f"it raises {getattr(after, 'error', after)}"
    for name, left in before.tensors.items():
        right = after.tensors.get(name)
        if (left is None) != (right is None):
            return f"{name} is there in one of them"
        if left is None or right is None:
            continue
        if left.shape != right.shape or left.dtype != right.dtype:
            return f"{name} is {left.dtype} {list(left.shape)}, {right.dtype} {list(right.shape)}"
        first, second = left.double().nan_to_num(), right.double().nan_to_num()
        far = (first - second).abs().max().item() if first.numel() else 0.0
        if far > _FAR * max(1e-6, first.abs().max().item() if first.numel() else 0.0):
            return f"{name} differs by {far:.3g}"
    plain = {n: v for n, v in before.plain.items() if after.plain.get(n) != v}
    return f"{next(iter(plain))} differs" if plain else ""


if __name__ == "__main__":
    main()
