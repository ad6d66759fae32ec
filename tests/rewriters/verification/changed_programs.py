"""The verdict on a program, a part of which is replaced."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

from npufix.advisor.verify.changed_functions import find_touched
from npufix.rewriters.verification import Job
from npufix.rewriters.verification.judge.verify_function import verify_function

if TYPE_CHECKING:
    from npufix.rewriters.verification.verdict import Verdict


def verdict(original: str, *replaced: tuple[str, str], by_hand: bool = True) -> Verdict:
    """Verify the one function that changes below the imports of torch."""
    before = "import torch\nimport torch.nn.functional as F\n" + dedent(original)
    after = before
    for old, new in replaced:
        assert old in after
        after = after.replace(old, new)
    (touched,) = [t for t in find_touched(before, after) if not t.reason]
    lines = touched.lines_original, touched.lines_changed
    job = Job("/user/m.py", "/user", before, after, touched.qualname, *lines, by_hand=by_hand)
    return verify_function(job).verdict
