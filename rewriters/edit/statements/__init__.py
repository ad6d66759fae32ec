"""What no pattern of one value can say: who else needs it, and which statements may move.

A rule whose ``search`` names one of ``searches.SEARCHES`` is found here and not by its pattern; the
functions of its forms show what it does, and prove it. In: a ``FunctionFlow`` and the text of its
module. Out: a ``Proposal`` for each place, with the changes of the text or what to do by hand.

Read ``proposal``, ``surroundings`` (where code stands in its function), then the searches:
``checks``, ``invariants``, ``handed_in``, ``host``, ``selections``, the fusions
and those of ``programs``; ``searches`` lists them and makes a ``Rewrite`` of a proposal.
"""
