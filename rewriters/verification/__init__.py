"""The proof of a rewrite: run the original and the patched code side by side and compare.

In comes a ``Job``: a file before and after a change, and the function in it that has changed. Out
comes a ``Verdict``: equivalent, refuted with a counterexample, or not verified with the reason.
``verify`` starts a child process and never imports torch itself. ``judge.verify_rule`` does the
same for the two functions of a rule, in the process that calls it.

Words: a *call* is one execution of the code; to *observe* is to call and record all that it did;
the *judge* decides. A *backend* is what a call runs on: a device, a virtual one, torch on CPU.

One job, for ``return x * torch.sigmoid(1.702 * x)`` that becomes ``torch_npu.npu_fast_gelu(x)``:

1. ``workers``: ``verify`` looks into the cache, asks a child process, which forks one for the job;
2. ``sandbox``: that process gives up files, network and memory beyond what it needs;
3. ``judge.verify_function`` loads both versions (``inputs.load``), each with what it needs of its
   file, and installs stand-ins for the operators of torch_npu (``reference``);
4. ``inputs.search`` finds arguments under which the original runs the changed line:
   ``x=float[2, 3, 8]``; ``inputs.cases`` makes calls of them: with zeros, NaN, in another size;
5. ``judge.compare_versions`` observes each call twice (``calls.observe``), the original and the
   patched code; where their numbers differ, the original in float64 too. ``kernels`` compute what
   the device would;
6. ``judge.judge`` asks whether the patched values are as close to float64 as the original's;
7. if not, ``judge.shrink`` makes the call smaller (``x=float[1]``), and
   ``judge.programs.counterexample`` writes it as a program that shows it; if so, ``judge.checks``
   asks what else must hold;
8. the verdict goes back through the pipe, into the cache, to whoever has asked.

Read in this order, in which no room imports a later one: ``kernels``, ``verdict``, ``sandbox``,
``reference``, ``virtual_npu``, ``calls``, ``inputs``, ``judge``, ``workers``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.match.recorded_call import RecordedCall
    from npufix.rewriters.verification.workers.parent import Settings, verify

__all__ = ["Job", "RecordedCall", "Settings", "verify"]

_HOMES = {
    "Job": "npufix.rewriters.edit.job",
    "RecordedCall": "npufix.rewriters.match.recorded_call",
    "Settings": "npufix.rewriters.verification.workers.parent",
    "verify": "npufix.rewriters.verification.workers.parent",
}


def __getattr__(name: str) -> object:
    """Load what is asked for when it is: reports need the records of ``verdict`` alone."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
