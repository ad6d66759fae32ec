"""Reports to draw: one with a great many rows, one whose names attack the page."""

from __future__ import annotations

from npufix.reports import report as r
from npufix.reports.html.details import (
    Cells,
    Curve,
    Details,
    Lane,
    Links,
    Memory,
    ShownFile,
    ShownLine,
    Timeline,
)

HOSTILE = (
    "</script><script>window.attacked = 1</script><img src=x onerror='window.attacked = 2'>"
    "{{ 7 * 7 }}${alert(3)}\x1b[31m\u202e\x00\"'&"
)
LONG = "x" * 100_000


def sample(operators: int, findings: int, *, hostile: bool = False) -> tuple[r.Report, Details]:
    """Return a report of this size; its names are HOSTILE or LONG now and then."""

    def name(number: int) -> str:
        if not hostile:
            return f"Op{number}"
        return (
            f"Op{number}{LONG}"
            if number == 5
            else f"{HOSTILE if number % 3 == 0 else ''}Op{number}"
        )

    numbers = range(operators)
    total = sum(10**9 // (n + 1) for n in numbers)
    made = r.Report(
        tool="npufix",
        headline=f"A verdict about {name(3)}.",
        dump=f"runs/{name(3)}",
        source="src",
        environment=r.Environment(0, 1, "2.1", "8.0", "Level1", name(3) if hostile else None),
        split=r.StepSplit(3, 10**8, 9 * 10**7, 10**6, 9 * 10**6),
        compute_ns=total,
        attributed=0.9,
        hot_operators=[
            r.HotOperator(
                type=name(n), core="AI_CORE", calls=n + 1, total_ns=10**9 // (n + 1),
                mean_ns=1000 + n, share=10**9 // (n + 1) / total, shapes=f"{n},128 float",
                other_shapes=0, where=f"src/file{n % 50}.py:{n}", function="forward", lines=1,
                p50_ns=900, p95_ns=2000, max_ns=3000, bound="mte",
            )
            for n in numbers
        ],
        hot_collectives=[
            r.HotCollective(
                name(3), "collective", "0", 2, 12 * 10**6, 10**6, 10**6, 10**7, 1 << 20, 12.5
            )
        ],
        hot_shapes=[
            r.HotShape(name(n), "AI_CORE", f"{n},128 float", n, 10**9 // (n + 1), 1000, 1e-4)
            for n in numbers
        ],
        findings=[_finding(n, name(n)[:2000]) for n in range(findings)],
        problems=[r.Problem(name(3), name(3), name(3), damaged=True)] if hostile else [],
        next_steps=[],
        hot_lines=[
            r.HotLine(f"src/{name(n)}.py", n, "f", "line", "", n, 10**8 // (n + 1), 1e-4, ["A"])
            for n in range(operators // 2)
        ],
        ranks=[r.Rank(n, "dump", 10**6 * n, 10**5 * n, None) for n in range(8)],
        collect=HOSTILE if hostile else "",
    )  # fmt: skip
    return made, _details(name, HOSTILE if hostile else "x = masked(x)")


def _finding(number: int, name: str) -> r.Finding:
    return r.Finding(
        rule="NPU201", name="masked-assignment", summary=f"{name} assignment",
        path=f"src/file{number % 50}.py", line=number + 1, function=name,
        code=f"x[m] = 0  # {name}",
        replacement="x.masked_fill_(m, 0)", safety="safe",
        conditions=[r.Condition("same-rank-mask", name, "open")], problem="",
        fingerprint=f"{number:x}", kernels=[name], calls=3, device_ns=10**6, share=0.01,
        saving=r.Saving(1000, 2000, "a model"), diff=f"--- a\n+++ b\n@@ -1 +1 @@\n-{name}\n+b\n",
        verdict=r.Verdict(
            "equivalent", name, "f", "", 3, [r.Measure("value", "float32", 1e-7, 2e-7)], ""
        ),
    )  # fmt: skip


def _details(name: object, text: str) -> Details:
    assert callable(name)
    return Details(
        Cells(
            3,
            ["", *(f"Model_0/{name(n)}" for n in range(9))],
            [f"src/file{n}.py:{n + 1} f" for n in range(50)],
            [name(n) for n in range(300)],
            [f"{n} float" for n in range(3000)],
            [
                (n % 2, n % 10, n % 50, n % 300, n, 3, 10**8 // (n + 1))
                for n in range(3000)
            ],
        ),
        Timeline(
            "step 1",
            10**8,
            [Lane("host", 1), Lane("compute", 1), Lane("communication", 1), Lane("idle", 1)],
            [*(name(n) for n in range(100)), "late"],
            ["", text],
            [
                *((n % 3, n * 30_000, 20_000, n % 100, n % 5 - 1 if n % 3 else -1, 1, n % 2)
                  for n in range(3000)),
                *((3, n * 30_000 + 20_000, 10_000, 100, -1, 1, -1) for n in range(3000)),
            ],
        ),
        Links([0, 1, 8], [[None, 20.0, 10.0], [20.0, None, 2.5], [None, None, None]]),
        Memory(10**9, [Curve("PTA allocated", [(0, 10**9), (10**9, 2 * 10**9)])],
               [(name(3), 2, 1 << 30)]),
        [
            ShownFile(f"src/file{k}.py", 1000 * (30 - k), [
                ShownLine(n, text, n * 100, 1, [n % 3] if n % 50 == 0 else [])
                for n in range(1, 99)
            ])
            for k in range(30)
        ],
    )  # fmt: skip
