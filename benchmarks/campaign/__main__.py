"""The table of docs/campaign.md: public adaptations to NPUs against what they replace.

    python -m benchmarks.campaign CHECKOUTS [--work DIR] [--only WORD] [--on GROUND]
        [--write docs/campaign.md]

``CHECKOUTS`` holds repositories as ``owner+name`` (clones or bare) and wheels; ``pairs.json``
names what is compared. A pair that ``DIR`` has a verdict of is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.campaign.pairs import PairError, compose, patched, unpack

from npufix.advisor.verify.changes import ChangedFile, Changes
from npufix.advisor.verify.device_branches import as_on_npu
from npufix.advisor.verify.settings import make_settings
from npufix.advisor.verify.verifying import Given, check
from npufix.rewriters.verification.workers.pool import keep_children

PAIRS = Path(__file__).with_name("pairs.json")
_BEGIN, _END = (
    "<!-- campaign: written by python -m benchmarks.campaign -->",
    "<!-- campaign end -->",
)
_WORST_FIRST = ("refuted", "not verified", "equivalent")
_ASKED = ("old", "changes", "replace", "assume")


def main(arguments: list[str]) -> None:
    """Verify what is not verified yet, then print the table or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--work", type=Path, default=Path("build/campaign"))
    parser.add_argument("--on", default="reference")
    parser.add_argument("--only", default="", help="pairs whose name holds this word")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    told = json.loads(PAIRS.read_text("utf-8"))
    results = options.work / f"results-{options.on}"
    results.mkdir(parents=True, exist_ok=True)
    with keep_children():
        for pair in told["pairs"]:
            kept = results / f"{pair['id']}-{_digest(pair)}.json"
            if kept.exists() or options.only not in pair["id"]:
                continue
            try:
                found = _verify(pair, told["sources"], options)
            except PairError as error:
                print(f"{pair['id']}: {error}", flush=True)
                continue
            kept.write_text(json.dumps(found, indent=1), "utf-8")
            for one in found:
                print(f"{pair['id']}: {one['status']}: {one['reason']}", flush=True)
    every = [(pair, results / f"{pair['id']}-{_digest(pair)}.json") for pair in told["pairs"]]
    rows = [(pair, json.loads(kept.read_text("utf-8"))) for pair, kept in every if kept.exists()]
    text = table(rows, told["sources"])
    if options.write is None:
        print(text)
        return
    page = options.write.read_text("utf-8")
    head, _, rest = page.partition(_BEGIN)
    options.write.write_text(f"{head}{_BEGIN}\n{text}\n{_END}{rest.partition(_END)[2]}", "utf-8")


def _digest(pair: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([pair.get(k) for k in _ASKED]).encode()).hexdigest()[:12]


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
            changed = patched(changed, path, file)
        elif place != f"{pair['old']}:{name}":  # else both are branches of one function
            changed = compose(changed, name, file.read_text("utf-8"), new_name[0])
    for before, after in pair.get("replace", {}).items():
        original = original.replace(before, after)
    (options.work / f"{pair['id']}-old.py").write_text(original, "utf-8")
    (options.work / f"{pair['id']}-new.py").write_text(changed, "utf-8")
    texts = as_on_npu(original), as_on_npu(changed)
    change = ChangedFile(path, folder / path, folder, *texts)
    settings = make_settings(options.on, no_cache=True, say=lambda _: None)
    first = next(iter(pair["changes"]))
    whole = first.partition(".")[0] == first and first[0].isupper()  # a class
    given = Given(assume=tuple(pair.get("assume", ())), function="" if whole else first)
    return [
        {"status": one.verdict.status.value, "reason": one.verdict.reason,
         "cases": one.verdict.cases, "notes": list(one.verdict.notes),
         "script": one.verdict.script, "tried": repr(one.verdict.tried)}
        for one in check(Changes((change,), path), settings, given)
    ]  # fmt: skip


def table(rows: list[tuple[dict[str, Any], list[dict[str, Any]]]], sources: dict[str, str]) -> str:
    """Return the verdicts, a line for each pair, and where the code is from."""
    lines = ["| Original | Adaptation | Verdict | Judgement |", "| --- | --- | --- | --- |"]
    counts = dict.fromkeys(_WORST_FIRST, 0)
    for pair, found in rows:
        worst = min(found, key=lambda one: _WORST_FIRST.index(one["status"]))
        status = worst["status"]
        counts[status] += 1
        calls = f", {sum(one['cases'] for one in found)} calls"
        said = status + (calls if status == "equivalent" else f": {worst['reason']}")
        name, place = next(iter(pair["changes"].items()))
        source, _, *new = place.split(":")
        old = pair["old"].partition(":")[0]
        cells = f"{old} `{name}`", f"{source} `{(new or [name])[0]}`", said, pair["judgement"]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    places = [p for pair, _ in rows for p in (pair["old"], *pair["changes"].values())]
    used = sorted({place.partition(":")[0] for place in places})
    summary = ", ".join(f"{count} {status}" for status, count in reversed(counts.items()))
    where = ", ".join(f"{name} is `{sources[name]}`" for name in used)
    return "\n".join([f"{len(rows)} pairs: {summary}.", "", *lines, "", f"{where}."])


if __name__ == "__main__":
    main(sys.argv[1:])
