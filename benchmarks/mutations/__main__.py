"""The mutation score of the verifier: ``python -m benchmarks.mutations --functions 200``.

Every verdict is a line of ``--results``; a run that was ended goes on where it was. ``--write``
makes a page ``mutations.md`` of all lines.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.mutations import larger, right, wrong
from benchmarks.mutations.edits import Source
from benchmarks.mutations.functions import PACKAGES, download, find_functions
from benchmarks.mutations.rules import run_rules

from npufix.advisor.verify.changed_functions import find_touched
from npufix.rewriters.edit.job import Job
from npufix.rewriters.verification import Settings, verify
from npufix.rewriters.verification.workers.backends import Backend

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.mutations.edits import Edit, Operator
    from benchmarks.mutations.functions import Function

    from npufix.rewriters.verification.verdict import Verdict

_PAGE = """\
# Mutation score

Wrong changes of {operators} kinds ({kinds}), made one at a time, drawn by a seed, in functions of
released packages ({packages}) and in the replacements of npufix's own rules; and changes of
{keeping} kinds that keep the meaning. Of the wrong ones that were not refuted,
`benchmarks.mutations.larger` asks on larger inputs, without the judge, whether they differ at all:
many do not, such as an `abs` that is dropped from a square.

| seed | of | changes | made | refuted | equivalent | not verified | refuted of those that differ |
|---|---|---|---|---|---|---|---|
{rows}

The verifier is mended as the survivors tell, also while a sample runs; a survivor is listed as it
was then, and each later seed is drawn afresh. A sample is as long as time allowed: it has few
functions, and none is a measure to a percent.

Of the wrong changes that could be verified and differ, **{score}** are refuted: {functions_score}
in functions of packages, {rules_score} in rules. Of the changes that keep the meaning and could be
verified, {noise} are refuted. Nothing is said of those that could not be verified.

{survivors}
Run it with `python -m benchmarks.mutations --functions {functions} --each {each} --seed SEED` and
with `--rules`; it goes on where it was ended, and `--write` makes this page of the lines.
"""
_EACH = 2
_EXPLAINED = Path(__file__).parent / "survivors.json"
"""What people found out about changes that were called equivalent, by function and kind."""


def mutants(
    function: Function, operators: Mapping[str, Operator], each: int, seed: int
) -> Iterator[tuple[str, Edit, str]]:
    """Yield changes of a function: some of each kind, at places that are drawn by its name."""
    source = _source_of(function.path)
    inside = [
        node
        for scope in ast.walk(source.tree)
        if isinstance(scope, ast.FunctionDef) and scope.lineno == function.first
        for node in ast.walk(scope)
    ]
    found = []
    for kind, operator in operators.items():
        edits = [edit for node in inside for edit in operator(source, node)]
        edits = [edit for edit in edits if function.first < edit.line <= function.last]
        if edits:
            found.append((kind, random.Random(f"{seed} {function.name} {kind}").choice(edits)))  # noqa: S311 - the same each time
    random.Random(f"{seed} {function.name}").shuffle(found)  # noqa: S311 - same
    for kind, edit in found[:each]:
        changed = edit.apply(source.text)
        if changed != source.text and _compiles(changed):
            yield kind, edit, changed


@functools.cache
def _source_of(path: Path) -> Source:
    return Source(path.read_text("utf-8", "replace"))


def _compiles(text: str) -> bool:
    try:
        compile(text, "changed", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def job_of(function: Function, edit: Edit, changed: str) -> Job:
    """Return what the verifier is asked."""
    text = _source_of(function.path).text
    before, after = (edit.line,), (edit.line,)
    first, last = (text.encode().count(b"\n", 0, at) + 1 for at in (edit.start, edit.end))
    if edit.line <= function.body or (first, last) != (edit.line, edit.line) or "\n" in edit.new:
        # As ``npufix verify`` sees it: a default has no line that runs, where it is read is one.
        touched = [t for t in find_touched(text, changed) if t.qualname == function.qualname]
        if touched and not touched[0].reason:
            before, after = touched[0].lines_original, touched[0].lines_changed
    return Job(
        str(function.path), str(function.root), text, changed, function.qualname,
        before, after, by_hand=True,
    )  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Verify what is not verified yet, and write down each verdict as it comes."""
    known = {(r["sense"], r["function"], r["kind"]) for r in read(options.results)}
    if options.rules:
        run_rules(options.results, known, options.each, options.seed)
        return
    functions = find_functions(download(options.packages), options.seed)
    chosen = list(itertools.islice(functions, options.first, options.first + options.functions))
    senses = {"wrong": wrong.OPERATORS, "right": right.OPERATORS}
    senses = {sense: senses[sense] for sense in options.senses}
    rounds: dict[tuple[int, bool], list[tuple[dict[str, Any], Job]]] = {}
    for function in chosen:
        for sense, operators in senses.items():
            made = mutants(function, operators, options.each, options.seed)
            for number, (kind, edit, changed) in enumerate(made):
                if (sense, function.name, kind) not in known:
                    row = {"sense": sense, "seed": options.seed, "function": function.name,
                           "kind": kind,
                           "line": changed.splitlines()[edit.line - 1].strip()}  # fmt: skip
                    place = rounds.setdefault((number, sense != "wrong"), [])
                    place.append((row, job_of(function, edit, changed)))
    # One of every function first, wrong ones before right ones: a run may be ended at any time.
    ordered = (rounds[place] for place in sorted(rounds))
    asked = {id(job): (row, job) for each in ordered for row, job in each}
    print(f"{len(asked)} changes of {len(chosen)} functions, {len(known)} known", flush=True)
    with options.results.open("a", encoding="utf-8") as file:

        def note(job: Job, verdict: Verdict, _total: int) -> None:
            row, _ = asked[id(job)]
            row |= {"status": verdict.status.value, "cases": verdict.cases}
            row["reason"] = verdict.reason[:200]
            if row["sense"] == "wrong" and row["status"] == "equivalent":
                plain = dataclasses.asdict(job)
                names = ("path", "root", "original", "patched", "qualname", "by_hand",
                         "lines_original", "lines_patched")  # fmt: skip
                try:
                    row["larger"] = larger.ask({name: plain[name] for name in names})
                except RuntimeError as error:
                    row["not_asked"] = str(error)
            file.write(json.dumps(row) + "\n")
            file.flush()

        settings = Settings(Backend(options.on), decided=note, children=options.children)
        verify([job for _, job in asked.values()], settings)


def read(results: Path) -> list[dict[str, Any]]:
    """Return the lines of earlier runs."""
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text("utf-8").splitlines() if line]


def describe(rows: list[dict[str, Any]]) -> str:
    """Return the page."""
    explained = json.loads(_EXPLAINED.read_text("utf-8"))
    for row in rows:
        row["of"] = "rules" if row["function"].startswith("rules/") else "packages"
        said = explained.get(f"{row['function']} {row['kind']}", {})
        row["why"] = said.get("why") or row.get("not_asked") or "no difference was found"
        row["missed"] = said.get("differs", bool(row.get("larger")))
    table = []
    kinds = ", ".join(kind.replace("_", " ") for kind in wrong.OPERATORS)
    samples = Counter((r["seed"], r["of"], r["sense"]) for r in rows)
    for seed, of, sense in sorted(samples, key=str):
        own = [r for r in rows if (r["seed"], r["of"], r["sense"]) == (seed, of, sense)]
        found = Counter(r["status"] for r in own)
        counts = " | ".join(str(found[s]) for s in ("refuted", "equivalent", "not verified"))
        words = "wrong" if sense == "wrong" else "keeping the meaning"
        score = _score(own) if sense == "wrong" else ""
        table.append(f"| {seed} | {of} | {words} | {len(own)} | {counts} | {score} |")
    accepted = [r for r in rows if (r["sense"], r["status"]) == ("wrong", "equivalent")]
    noisy = [r for r in rows if (r["sense"], r["status"]) == ("right", "refuted")]
    lines = [
        _listed("Called equivalent, and different", [r for r in accepted if r["missed"]], "why"),
        _listed("Called equivalent, and equal", [r for r in accepted if not r["missed"]], "why"),
        _listed("Right, and refuted", noisy, "reason"),
    ]
    functions = {r["function"] for r in rows if r["of"] == "packages"}
    packages = {f.partition("/")[0] for f in functions}
    verified = [r for r in rows if r["sense"] == "right" and r["status"] != "not verified"]
    return _PAGE.format(
        operators=len(wrong.OPERATORS), kinds=kinds,
        packages=", ".join(p for p in PACKAGES if _module_of(p) in packages),
        keeping=len(right.OPERATORS), rows="\n".join(table), survivors="\n".join(lines),
        score=_score(rows), functions_score=_score(rows, "packages"),
        rules_score=_score(rows, "rules"), noise=f"{len(noisy)} of {len(verified)}",
        functions=len(functions), each=_EACH,
    )  # fmt: skip


def _score(rows: list[dict[str, Any]], of: str = "") -> str:
    wrongs = [r for r in rows if r["sense"] == "wrong" and of in r["of"]]
    refuted = sum(r["status"] == "refuted" for r in wrongs)
    missed = sum(r["status"] == "equivalent" and r["missed"] for r in wrongs)
    return f"{refuted} of {refuted + missed}"


def _module_of(requirement: str) -> str:
    return requirement.partition("==")[0].replace("-", "_")


def _listed(title: str, rows: list[dict[str, Any]], why: str) -> str:
    if not rows:
        return f"{title}: none.\n"
    said = []
    for row in rows:
        kind = row["kind"].replace("_", " ")
        said.append(f"- `{row['function']}`, {kind}: `{row['line'][:120]}`: {row[why][:400]}")
    return f"{title} ({len(rows)}):\n\n" + "\n".join(said) + "\n"


def main() -> None:
    """Run the campaign, or make the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="leave out so many functions")
    parser.add_argument("--each", type=int, default=_EACH, help="changes of a function and sense")
    parser.add_argument("--seed", type=int, default=0, help="which functions and places are drawn")
    parser.add_argument("--senses", nargs="+", default=["wrong", "right"])
    parser.add_argument("--rules", action="store_true", help="the replacements of rules instead")
    parser.add_argument("--on", default="reference")
    parser.add_argument("--children", type=int, default=0)
    parser.add_argument("--packages", type=Path, default=Path("build/mutations"))
    parser.add_argument("--results", type=Path, default=Path("build/mutations.jsonl"))
    parser.add_argument("--write", type=Path, help="the folder of the page; nothing is run")
    options = parser.parse_args()
    if options.write:
        (options.write / "mutations.md").write_text(describe(read(options.results)), "utf-8")
        return
    options.packages.mkdir(parents=True, exist_ok=True)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    run(options)


if __name__ == "__main__":
    main()
