"""A place that a rule applies to: what is known of it, and what would become of it."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rules.substitution import Safety

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from npufix.rules.substitution import Condition, Form, Substitution

IN_BETWEEN = "a value in between is needed elsewhere in the function"
"""The problem of a place whose replacement computes less than others need."""


class Basis(str, Enum):
    """Where the proof of a condition comes from."""

    SOURCE = "source"
    PROFILE = "profile"
    ASSUMED = "assumed"
    """Nothing proves it; a comment of the user beside the code vouches for it."""
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Proof:
    """A condition of a rule and whether it holds at a site."""

    condition: Condition
    basis: Basis


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The module after one substitution."""

    direct: str
    """The new code unconditionally: what is verified."""
    portable: str
    """The new code on an NPU, the old one elsewhere; equal to ``direct`` without NPU operators."""
    text: str
    """What was put in: new local names, if any, then the expression."""
    line: int
    """Where it is in ``direct``."""
    on_npu: str = ""
    """As ``portable``, where the new code runs everywhere; empty if that cannot be laid out."""
    probe: str = ""
    """The module with a call of ``PROBE`` in place of the new code: it gets the operands."""


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """A place where a rule applies, and what it would become."""

    rule: Substitution
    form: Form
    function: str
    line: int
    code: str
    lines: frozenset[int]
    """All lines of the file whose kernels the replacement takes over."""
    proofs: tuple[Proof, ...]
    rewrite: Rewrite | None
    problem: str
    """Why the tool does not write the change; empty if it can."""
    operators: frozenset[str]
    """The names under which a profile records what the pattern stands for."""
    function_lines: tuple[int, int]
    occasion: Occasion = Occasion.STEP
    """When it runs, by what the source says."""
    is_hot: bool = False
    """Whether its file says that steps run its function, or the one around that."""
    says_what_to_do: bool = False
    """Whether the problem of a loop is what a person can write in its place."""

    @property
    def depth(self) -> int:
        """How far below the first line of its function it is."""
        return self.line - self.function_lines[0]

    @property
    def own_lines(self) -> set[int]:
        """Return the lines of its own function that compute it, not those of helpers."""
        first, last = self.function_lines
        return {self.line, *(line for line in self.lines if first <= line <= last)}

    @property
    def open_conditions(self) -> tuple[Condition, ...]:
        """Return the conditions that the user has to vouch for."""
        return tuple(p.condition for p in self.proofs if p.basis is Basis.OPEN)

    @property
    def proven_names(self) -> tuple[str, ...]:
        """Return the conditions that the source proves, by the names that the verifier knows."""
        proven = (p.condition for p in self.proofs if p.basis is Basis.SOURCE)
        return tuple(c.meaning or c.name for c in proven)

    @property
    def safety(self) -> Safety:
        """Return what the tool may do here."""
        if self.rewrite is None or self.rule.advice:
            return Safety.ADVICE
        proven = {Basis.SOURCE, Basis.PROFILE}
        return Safety.SAFE if all(p.basis in proven for p in self.proofs) else Safety.CONDITIONAL

    def left_to_hand(self, why: str) -> Site:
        """Return the site with nothing that the tool writes."""
        return dataclasses.replace(self, rewrite=None, proofs=(), problem=self.problem or why)

    def assuming(self, names: frozenset[str]) -> Site:
        """Return the site with what its user vouches for there."""
        proofs = tuple(
            Proof(proof.condition, Basis.ASSUMED)
            if proof.basis is Basis.OPEN and proof.condition.name in names
            else proof
            for proof in self.proofs
        )
        return dataclasses.replace(self, proofs=proofs)


def leave_out_covered(sites: Sequence[Site]) -> list[Site]:
    """Return the sites that the change of no other one takes away or reaches.

    One after the other: a site and the call of the method around it would rule out each other.
    """
    beside = _by_line(sites)
    sites = [site for site in sites if not any(_calls(site, other) for other in beside(site))]
    beside = _by_line(sites)
    sites = [site for site in sites if not any(_is_inside(site, other) for other in beside(site))]
    beside = _by_line(sites)
    return [site for site in sites if not any(_is_part(other, site) for other in beside(site))]


def _by_line(sites: Sequence[Site]) -> Callable[[Site], Iterable[Site]]:
    """Return what tells the sites on the lines of a site: a file may have thousands."""
    found: dict[int, list[Site]] = {}
    for site in sites:
        for line in site.lines:
            found.setdefault(line, []).append(site)
    return lambda site: (other for line in site.lines for other in found.get(line, ()))


def _is_inside(site: Site, other: Site) -> bool:
    """Tell whether a site is in a method that ``other`` takes the place of: ``self._norm(x)``."""
    owner, method = site.function.rpartition(".")[0], other.function.rpartition(".")[0]
    covered = site.lines < other.lines and other.rewrite is not None
    return bool(owner) and owner == method and site.function != other.function and covered


def _is_part(site: Site, other: Site) -> bool:
    """Tell whether a site is written that is a part of ``other``, of which nothing can be written.

    A norm whose gain follows in a branch: ``if self.affine: x = x * self.weight``
    """
    one = site.rule is other.rule and site.function == other.function
    return one and other.rewrite is None and site.rewrite is not None and site.lines < other.lines


def _calls(site: Site, other: Site) -> bool:
    """Tell whether a site is no more than a call of the function that ``other`` is in."""
    if site.rule is not other.rule or site.function == other.function or other.rewrite is None:
        return False
    whole = other.lines < site.lines and len(other.open_conditions) <= len(site.open_conditions)
    return whole and isinstance(ast.parse(f"({site.code})", mode="eval").body, ast.Call)
