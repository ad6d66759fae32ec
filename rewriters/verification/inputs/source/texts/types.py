"""Types that docstrings say arguments are of: ``x (Tensor): ...``, ``starts: list of int``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPED = (
    r"^[ \t]*(?:[-*][ \t]*)?({names})[ \t]*\(([^()\n]+)\)[ \t]*:",
    r"(?:^|;)[ \t]*({names})[ \t]*:[ \t]*([^:;\n]+?)[ \t]*(?=;|$)",
    r"^[ \t]*:type[ \t]+({names}):[ \t]*([^\n]+?)[ \t]*$",
    r"^[ \t]*:param[ \t]+(?=[^:\n]*[ \t]({names}):)([^:\n]+?)[ \t]+\w+:",
)
"""How docstrings say of what type an argument is: ``x (Tensor): ...``, ``x : Tensor``."""
_CONTAINED = r"(?i:{many}(?: of (?:\d+ |two |three |four |python )?|\[)(?:{one})(?:, *\.\.\.)?\]?)"
_NAMED_TENSORS = (
    r"(?i:(?:typing\.)?(?:dict\w*|mapping)(?:\[str, *| (?:of|from|mapping) (?:str\w*|names?) to )"
    r"(?:torch\.)?tensors?\]?)"
)
_SCALARS = (
    r"(?i:(?:list|sequence|iterable|tuple)(?: of (?:\d+ |two |three |four )?)"
    r"(?:scalars?|0-?d(?:im\w*)?)(?: tensors?| losses)?)"
)
_TYPES: tuple[tuple[str, str], ...] = (
    (_SCALARS, "list[Float[Tensor,'']]"),
    (r"(?:torch\.)?((?:Float|Long|Half|Bool|Int)?Tensor)|tensor", "Tensor"),
    (r"int|integer", "int"),
    (r"float", "float"),
    (r"bool|boolean", "bool"),
    (r"str|string", "str"),
    (r"(?:typing\.)?(?:[Ll]ist|[Ss]equence)\[(?:torch\.)?Tensor\]", "list[Tensor]"),
    (r"list\s+of\s+(?:torch\.)?[Tt]ensors?", "list[Tensor]"),
    *(
        (_CONTAINED.format(many=many, one=one), f"{kind}[{name}{rest}]")
        for many, kind, rest in (
            (r"(?:typing\.)?(?:list|sequence|iterable|collection)", "list", ""),
            (r"(?:typing\.)?tuple", "tuple", ", ..."),
        )
        for one, name in (
            (r"int(?:s|eger|egers)?|ind(?:ex|ices|exes)|positions?|lengths?|sizes?", "int"),
            (r"floats?", "float"),
            (r"str(?:s|ings?)?", "str"),
        )
    ),
    (r"(?i:\(int, *int\)|tuple\[int, *int\]|pair of int(?:s|egers)?)", "tuple[int, int]"),
    (_NAMED_TENSORS, "dict[str,Tensor]"),
)
_INLINE = (
    r"(?i)(?<![\w.`])`*({names})`*[ \t]*(?::|\(|,|=|\bis\b|\bare\b)[ \t]*(?:an? |the )?"
    r"(?=((?:list|sequence|iterable|collection|tuple|dict\w*|mapping|pair)[ \[][^.;()\n]*))"
)
"""A type in the middle of a sentence: ``spec (F, T), starts: list of int, in order``."""
_OPTIONAL = re.compile(r"(?i)^optional\[(.*)\]$|,? *\boptional\b *,?|(?: or|,| \|) none\b")


def read_types(text: str, names: Sequence[str]) -> dict[str, str]:
    """Return the types that a docstring says arguments are of, as annotations; no others."""
    if not text.strip():  # most have none, and patterns are compiled anew for each function
        return {}
    plain = re.sub(r":(?:class|obj):|[`~]", "", text)
    one = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    found: dict[str, str] = {}
    for pattern in _TYPED if one else ():
        for name, said in re.findall(pattern.format(names=one), plain, re.MULTILINE):
            bare = _OPTIONAL.sub(r"\1", said).strip(" .")
            known = next((t for p, t in _TYPES if re.fullmatch(p, bare)), "")
            if known and name not in found:
                own = bare.rpartition(".")[2] if known == "Tensor" and bare != "tensor" else known
                found[name] = own if bare == said.strip(" .") else f"Optional[{own}]"
    for name, said in re.findall(_INLINE.format(names=one), plain) if one else ():
        several = (t for p, t in _TYPES if "[" in t and re.match(rf"(?:{p})(?!\w)", said))
        known = next(several, "")
        if known and name in names:
            found.setdefault(name, known)
    return found
