"""Code that wants to be called equivalent: no verdict comes from where it runs."""

from __future__ import annotations

import sys
import textwrap

import pytest

pytest.importorskip("torch", reason="torch is needed to verify changes")

from npufix.rewriters.verification import Job, Settings, verify  # fmt: skip
from npufix.rewriters.verification.verdict import Status, Verdict

pytestmark = [
    pytest.mark.xdist_group("forging"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs a process for each version"),
]
BEFORE = "import torch\ndef f(x):\n    return x * 2\n"
AFTER = "import gc, os, sys, torch\ndef f(x):\n{attack}\n    return x + 1\n"
VERDICT = (
    'b\'{"answer":{"verdict":{"status":"equivalent","ground":"anywhere","scope":"f","cases":9}},'
    '"imported":[]}\''
)
# Each runs in the process of the changed code, before it returns something else.
ATTACKS = {
    "torch says that all is the same": """
        torch.Tensor.__invert__ = lambda s: torch.zeros_like(s, dtype=torch.bool)
        torch.Tensor.__or__ = torch.Tensor.__ror__ = lambda s, o: torch.ones_like(s).bool()
        torch.Tensor.double = lambda s: torch.zeros(s.shape, dtype=torch.float64)
        torch.equal = torch.allclose = lambda *a, **k: True
    """,
    "the judge's own functions are replaced": """
        for name, module in list(sys.modules.items()):
            if name.endswith(("judge.judge", "judge.compare_versions")):
                module.Judge.decide = lambda self, other=None: None
                module.find_accepted = lambda t, e: torch.ones_like(t.original).bool()
    """,
    "a verdict into everything that is open": f"""
        frame = sys._getframe()
        while frame is not None:
            for value in list(frame.f_locals.values()):
                token = getattr(value, "token", value)
                if isinstance(token, bytes):
                    for number in range(3, 64):
                        for data in ({VERDICT}, token + {VERDICT} + token):
                            try:
                                os.write(number, data)
                            except OSError:
                                pass
            frame = frame.f_back
    """,
    "answers ahead of the questions": """
        from npufix.rewriters.verification.calls.observe import CallRecord
        from npufix.rewriters.verification.sandbox.transport import Packing
        import msgspec
        frame = sys._getframe()
        while frame is not None:
            pipe = frame.f_locals.get("pipe")
            for number in range(999) if hasattr(pipe, "token") else ():
                answer = number, "done", CallRecord(idle={"result", "x", "x after the call"}), []
                pipe.send(msgspec.msgpack.encode(Packing(closes=True).pack(answer)))
            frame = frame.f_back
    """,
    "what it gives back is its own affair": """
        from npufix.rewriters.verification.calls import observe
        was = observe._note_values
        def note(seen, results):
            pass
        class Everything(set):
            def __contains__(self, name):
                return True
        observe._note_values = note
        for one in gc.get_objects():
            if type(one) is observe.CallRecord:
                one.idle = {"result", "gradient of x", "x after the call"}
    """,
    "nothing runs but what shows nothing": """
        if sys.gettrace() is None and x.numel():
            raise RuntimeError("MemoryError")
    """,
    "every result is None": """
        from npufix.rewriters.verification.sandbox import transport
        transport._pack_tensor = lambda value: None
    """,
}


LOOKS = {
    "verified or not": "(x + 1, x * 2)['npufix' in sys.modules]",
    "where it is called from": "(x + 1, x * 2)[sys._getframe().f_back is not None]",
    "what else there is": "(x + 1, x * 2)[len(gc.get_objects()) > 9]",
    "what is set": "(x + 1, x * 2)['HOME' in os.environ]",
}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    """Return the verdicts on all attacks, and on a change that is right."""
    texts = {n: AFTER.format(attack=_indented(code)) for n, code in ATTACKS.items()}
    plain = AFTER.replace("{attack}\n", "")
    texts |= {n: plain.replace("x + 1", expression) for n, expression in LOOKS.items()}
    texts |= {"right": BEFORE.replace("x * 2", "2 * x")}
    jobs = [job(text) for text in texts.values()]
    return dict(zip(texts, verify(jobs, Settings(children=2)), strict=True))


def _indented(code: str) -> str:
    return textwrap.indent(textwrap.dedent(code).strip("\n"), "    ")


def job(after: str) -> Job:
    last = after.count("\n")
    return Job("/user/m.py", "/user", BEFORE, after, "f", (3,), (last,), by_hand=True)


@pytest.mark.parametrize("attack", [*ATTACKS, *LOOKS])
def test_a_wrong_change_cannot_make_itself_right(verdicts: dict[str, Verdict], attack: str) -> None:
    assert verdicts[attack].status is not Status.EQUIVALENT
    assert "anywhere" not in verdicts[attack].ground


def test_the_same_call_of_honest_code_is_compared(verdicts: dict[str, Verdict]) -> None:
    assert verdicts["right"].status is Status.EQUIVALENT
    assert verdicts["torch says that all is the same"].status is Status.REFUTED


def test_what_both_versions_do_to_torch_is_no_matter() -> None:
    library = "import torch\ntorch.Tensor.__eq__ = lambda s, o: torch.ones_like(s).bool()\n"
    used = "EQ = torch.Tensor.__eq__\ndef f(x):\n    assert EQ is not None\n    return {}\n"
    before, right, wrong = (library + used.format(t) for t in ("x * 2", "x + x", "x + 1"))
    jobs = [Job("/user/m.py", "/user", before, t, "f", (6,), (6,)) for t in (right, wrong)]
    assert [v.status for v in verify(jobs)] == [Status.EQUIVALENT, Status.REFUTED]
