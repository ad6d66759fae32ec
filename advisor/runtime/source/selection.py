"""What of the rules a run is to use: the rules themselves, and the conditions vouched for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npufix.rules.substitution import Substitution


ATTENTION = ("npu104", "npu105", "npu160", "npu161", "npu162")
"""The rules of ``use_npu_fusion_attention``."""
WITHOUT_ATTENTION = (
    "use_npu_fusion_attention is off; it is torch_npu that runs scaled_dot_product_attention as one"
    ' kernel: a model loaded with attn_implementation="eager" does not call it'
)


@dataclass(frozen=True, slots=True)
class RuleSelection:
    """The rules that are wanted, and the conditions that the user vouches for."""

    rules: frozenset[str] = frozenset()
    """Their ids, lower case; empty means all."""
    without: frozenset[str] = frozenset()
    """Ids of rules that are not wanted, lower case."""
    allow: frozenset[str] = frozenset()
    """Names of conditions: ``same-dtype`` for all rules, ``npu102:rotary-limits`` for one."""
    named: frozenset[str] = frozenset()
    """Ids of rules that the user asked for by name: what nothing can ask, that vouches for."""

    def wants(self, rule: Substitution) -> bool:
        """Tell whether a rule is to be used."""
        name = rule.id.lower()
        return (not self.rules or name in self.rules) and name not in self.without

    def allows(self, rule: str, condition: str) -> bool:
        """Tell whether the user vouches for a condition of a rule."""
        return condition in self.allow or f"{rule.lower()}:{condition}" in self.allow

    @property
    def is_without_attention(self) -> bool:
        """Whether the switch for attention is off."""
        return self.without.issuperset(ATTENTION)

    def is_named(self, rule: str) -> bool:
        """Tell whether the user asked for a rule by its name or by its switch."""
        return rule.lower() in self.named

    @property
    def key(self) -> str:
        """Return what tells this selection from another one."""
        parts = (self.rules, self.without, self.allow, self.named)
        return "|".join(",".join(sorted(part)) for part in parts)
