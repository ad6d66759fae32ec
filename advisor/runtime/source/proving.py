"""``--verify``: running what a site computes before and after, and replacing it if that agrees.

The verdict is kept with the text that it is about, so that a later start without ``--verify``
still knows it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from npufix.rewriters.verification.verdict import Status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npufix.advisor.project.kept.stored import Store
    from npufix.advisor.runtime.source.guarding import SitePlan
    from npufix.advisor.runtime.source.places import RulePlace
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.verification import Job, Settings
    from npufix.rewriters.verification.verdict import Verdict

_FLOATING = "same-dtype"


class Prover:
    """Verifies sites, all on the same ground."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def verdicts(
        self, file: Path, text: str, sites: Sequence[Site], plans: dict[Site, SitePlan]
    ) -> dict[Site, Verdict]:
        """Return what each site's change comes to."""
        from npufix.rewriters.verification import verify

        jobs = [_job(file, text, site, plans[site]) for site in sites]
        found = verify(jobs, self._settings) if jobs else []
        return dict(zip(sites, found, strict=True))


def make_prover(on: str, chip: str) -> Prover:
    """Return a prover for this machine.

    Raises:
        GroundError: it cannot do what ``on`` asks for.

    """
    from npufix.advisor.verify.settings import make_settings

    return Prover(make_settings(on, no_cache=False, say=lambda _: None, chip=chip))


def _job(file: Path, text: str, site: Site, chosen: SitePlan) -> Job:
    from npufix.advisor.patch.patching import list_assumed_conditions
    from npufix.rewriters.edit.job import spell_path
    from npufix.rewriters.verification import Job

    new = site.rewrite
    if new is None:
        raise ValueError(site)
    return Job(
        path=spell_path(file.resolve()),
        root=spell_path(_root(file)),
        original=text,
        patched=new.direct,
        portable=new.portable if new.portable != new.direct else "",
        qualname=site.function,
        lines_original=(site.line,),
        lines_patched=(new.line,),
        torch_npu_version="",
        floating=site.rule.table == "fusion"
        or site.rule.floats_only
        or any(p.condition.name == _FLOATING for p in site.proofs),
        probes=(new.probe,) if new.probe else (),
        vouched=tuple(sorted({*list_assumed_conditions(site), *chosen.conditions})),
        inference=any(p.condition.excludes_gradients for p in site.proofs),
    )


def _root(file: Path) -> Path:
    """Return the folder that the imports of a file start from."""
    folder = file.resolve().parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def describe_verdict(verdict: Verdict) -> str:
    """Return a verdict in one line: ``equivalent on virtual-npu, launches 8 -> 1``."""
    if verdict.status is not Status.EQUIVALENT:
        return f"{verdict.status.value}: {verdict.reason}"
    launches = ""
    if verdict.launches is not None:
        old, new = len(verdict.launches.original), len(verdict.launches.patched)
        launches = f", launches {old} -> {new}"
    return f"equivalent on {verdict.on}{launches}"


def why_unproven(verdict: Verdict) -> str:
    """Return why a change is not to be made, "" if it is proven."""
    return "" if verdict.status is Status.EQUIVALENT else describe_verdict(verdict)


def keep(store: Store, data: bytes, places: Sequence[RulePlace]) -> None:
    """Keep the verdicts on a module, for later starts that do not ask for any."""
    for place in places:
        if place.verdict:
            store.put(place.verdict.encode(), *_key(data, place.rule, place.line))


def recall(store: Store | None, data: bytes, rule: str, line: int) -> str:
    """Return what an earlier start found out, "" if it did not."""
    found = None if store is None else store.get(*_key(data, rule, line))
    return "" if found is None else found.decode("utf-8", "replace")


def _key(data: bytes, rule: str, line: int) -> tuple[bytes, ...]:
    from npufix.rewriters.verification.workers.machine import find_installed

    versions = " ".join(find_installed(name) for name in ("torch", "torch-npu", "numpy"))
    digest = hashlib.sha256(data).digest()
    return b"verdict", digest, f"{rule}:{line}".encode(), versions.encode()
