"""From source to patch: what a function computes, which rule fits, what the text becomes.

One example all the way. The user wrote::

    def forward(self, x, gate):
        return x * F.silu(input=gate)

``graph``     Reading. ``graph.reader.read_function`` returns a ``FunctionFlow``: every expression
              with the node that is its value. All spellings of a call are one node:
              ``F.silu(gate)``, ``F.silu(input=gate)`` and ``F.silu(gate, inplace=False)`` are
              ``silu(param='gate', const=False)``, and what is returned is
              ``mul(param='x', silu(param='gate', const=False))``.
              ``graph.operators`` knows what torch's operators are called and do,
              ``graph.special`` lists the nodes that are none.
``match``     ``match.prefilter`` leaves out the rules whose operators the words of the file do not
              have. ``match.matching.pattern_of`` reads the ``pattern`` function of a rule through
              the same door, and ``match.matching.find`` unifies the two graphs: for the pattern
              ``up * F.silu(gate)`` a ``Match`` with ``up = param='x'``, ``gate = param='gate'``.
``facts``     The conditions of the rule ask about the match: ``facts.site_facts.SourceFacts``
              answers from the source ("is ``x`` a tensor?", "has it the rank of ``gate``?"),
              ``facts.recorded_facts.RecordedFacts`` also from what a profile saw at the line.
              ``None`` is an answer: it is not known.
``edit``      ``edit.rewrite.rewrite`` puts the ``replacement`` in the place of the match, with the
              user's own names, layout and imports, and reads the new text again:
              ``edit.validation.difference`` compares both graphs, the match aside. A rewrite that
              changes anything else is refused and says why.
              ``edit.statements`` finds, and changes, what no pattern of one value can say: who else
              needs a value that the host reads, what a loop computes anew in each round.
              ``edit.loops`` reads a loop over rows as a function of its variable and writes it as
              operators on all rows; no pattern is needed for that.
``find``      The door for all of it: ``find.find_sites(source, rules)`` yields a ``Site`` for each
              place, with the ``Rewrite``, and what is open where a condition is not known.
``verification``  runs the old and the new function on inputs that fit the rule and compares values
              and gradients: the verdict. It starts processes; nothing above runs code of the user.
``explain``   The other door: ``explain.near_misses`` says how far a pattern goes along with code
              that no rule matches, and what was expected where they part.
``write``     ``write.patch.unified_diff`` and ``write.writing.write`` bring new texts to disk, all
              of them or none. It knows nothing of the rest.

The rooms build on each other in one direction: ``graph``, then ``match``, ``facts``,
``edit``, then ``find`` and ``verification``, then ``explain``.
"""
