"""All that is said of loops for which nothing is written."""

from __future__ import annotations

from npufix.rewriters.edit.loops.advice.batches import OF_BATCHES
from npufix.rewriters.edit.loops.advice.independent import OF_ROUNDS
from npufix.rewriters.edit.loops.advice.pairings import OF_PAIRS
from npufix.rewriters.edit.loops.advice.ragged import ADVICE
from npufix.rewriters.edit.loops.advice.rows import BY_HAND
from npufix.rewriters.edit.loops.advice.several import OF_SEVERAL
from npufix.rewriters.edit.loops.rows.order import EFFECT

SENTENCES = frozenset({EFFECT, *ADVICE, *BY_HAND, *OF_BATCHES, *OF_PAIRS, *OF_ROUNDS, *OF_SEVERAL})
