"""The proof of a rewrite: run the original and the patched code side by side and compare.

``verify`` starts a child process and never imports torch itself. ``form.verify_form`` does the
same for the two functions of a rule and runs in the process that calls it.
"""

from npufix.rewriters.edit.job import Job
from npufix.rewriters.graph.recorded_call import RecordedCall
from npufix.rewriters.verification.workers.parent import Settings, verify

__all__ = ["Job", "RecordedCall", "Settings", "verify"]
