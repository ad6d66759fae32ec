"""The table of docs/campaign.md: public adaptations to NPUs against what they replace.

    python -m benchmarks.campaign CHECKOUTS [--work DIR] [--only WORD] [--write docs/campaign.md]

``CHECKOUTS`` holds repositories as ``owner+name`` (clones or bare) and wheels; ``pairs.json``
names what is compared. A pair that ``DIR`` has a verdict of is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.campaign.pairs import PairError, apply_patch, compose, unpack

from npufix.advisor.verify.changes import ChangedFile, Changes
from npufix.advisor.verify.settings import make_settings
from npufix.advisor.verify.verifying import Given, check
from npufix.rewriters.verification.workers.pool import keep_children

PAIRS = Path(__file__).with_name("pairs.json")
_BEGIN, _END = (
    "<!-- campaign: written by python -m benchmarks.campaign -->",
    "<!-- campaign end -->",
)
_OPEN = "no verdict yet"
_WORST_FIRST = (_OPEN, "refuted", "not verified", "equivalent")
_ASKED = ("old", "changes", "replace", "assume")


def main(arguments: list[str]) -> None:
    """Verify what is not verified yet, then write the table into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--work", type=Path, default=Path("build/campaign"))
    parser.add_argument("--only", default="", help="pairs whose name holds this word")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    told = json.loads(PAIRS.read_text("utf-8"))
    results = options.work / "results-reference"
    results.mkdir(parents=True, exist_ok=True)
    found = dict[str, list[dict[str, Any]]]()
    with keep_children():
        for pair in (pair for pairs in told["pairs"].values() for pair in pairs):
            asked = json.dumps([pair.get(key) for key in _ASKED])
            digest = hashlib.sha256(asked.encode()).hexdigest()[:12]
            kept = results / f"{pair['id']}-{digest}.json"
            if not kept.exists() and options.only in pair["id"]:
                try:
                    verdicts = _verify(pair, told["sources"], options)
                except PairError as error:
                    print(f"{pair['id']}: {error}", flush=True)
                    continue
                kept.write_text(json.dumps(verdicts, indent=1), "utf-8")
                for one in verdicts:
                    print(f"{pair['id']}: {one['status']}: {one['reason']}", flush=True)
            if kept.exists():
                found[pair["id"]] = json.loads(kept.read_text("utf-8"))
    if options.write is not None:
        head, _, rest = options.write.read_text("utf-8").partition(_BEGIN)
        page = f"{head}{_BEGIN}\n{tables(told, found)}\n{_END}{rest.partition(_END)[2]}"
        options.write.write_text(page, "utf-8")


def _verify(
    pair: dict[str, Any], sources: dict[str, str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the verdicts on the functions that a pair changes."""
    source, path = pair["old"].split(":")
    folder = unpack(sources[source], options.checkouts, options.work)
    original = changed = (folder / path).read_text("utf-8")
    for name, place in pair["changes"].items():
        new_source, new_path, *new_name = place.split(":")
        file = unpack(sources[new_source], options.checkouts, options.work) / new_path
        if file.suffix == ".patch":
            changed = apply_patch(changed, path, file)
        elif place != f"{pair['old']}:{name}":  # else both are branches of one function
            changed = compose(changed, name, file.read_text("utf-8"), new_name[0])
    for before, after in pair.get("replace", {}).items():
        original = original.replace(before, after)
    (options.work / f"{pair['id']}-old.py").write_text(original, "utf-8")
    (options.work / f"{pair['id']}-new.py").write_text(changed, "utf-8")
    change = ChangedFile(path, folder / path, folder, original, changed)
    settings = make_settings("reference", no_cache=True, say=lambda _: None)
    first = next(iter(pair["changes"]))
    whole = first.partition(".")[0] == first and first[0].isupper()  # a class
    given = Given(assume=tuple(pair.get("assume", ())), function="" if whole else first)
    return [
        {"status": one.verdict.status.value, "reason": one.verdict.reason,
         "cases": one.verdict.cases, "notes": list(one.verdict.notes),
         "script": one.verdict.script, "tried": repr(one.verdict.tried)}
        for one in check(Changes((change,), path), settings, given)
    ]  # fmt: skip


def tables(told: dict[str, Any], found: dict[str, list[dict[str, Any]]]) -> str:
    """Return a table for each group, a line for each pair, and where the code is from."""
    lines, counts, used = list[str](), Counter[str](), set[str]()
    for group, pairs in told["pairs"].items():
        lines += ["", f"### {group}", "", "| Original | Adaptation | Verdict | Judgement |",
                  "| --- | --- | --- | --- |"]  # fmt: skip
        for pair in (pair for pair in pairs if pair["id"] in found or pair["judgement"]):
            every = found.get(pair["id"]) or [{"status": _OPEN, "reason": "", "cases": 0}]
            worst = min(every, key=lambda one: _WORST_FIRST.index(one["status"]))
            counts[worst["status"]] += 1
            calls = f", {cases} calls" if (cases := sum(one["cases"] for one in every)) else ""
            why = worst["reason"].removeprefix("as on an NPU: ").partition(", for ")[0]
            said = worst["status"] + (f": {why}" if why else calls)
            name, place = next(iter(pair["changes"].items()))
            new, _, *new_name = place.split(":")
            old = pair["old"].partition(":")[0]
            used |= {old, *(place.partition(":")[0] for place in pair["changes"].values())}
            cells = f"{old} `{name}`", f"{new} `{(new_name or [name])[0]}`", said, pair["judgement"]
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    summary = ", ".join(f"{counts[status]} {status}" for status in reversed(_WORST_FIRST))
    where = ", ".join(f"{name} is `{told['sources'][name]}`" for name in sorted(used))
    return "\n".join([f"{counts.total()} pairs: {summary}.", *lines, "", f"{where}."])


if __name__ == "__main__":
    main(sys.argv[1:])
