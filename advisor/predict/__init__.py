"""What a step would be after a change: the recorded step is run again without what goes.

In come the evidence of a run and its findings with their ``Change`` (``evidence.change``), out
come ``Predictions``. Read ``graph`` (what is known of a step, and how it runs again in many
variants at once), ``recorded`` and ``waits`` (how it is seen in a recording), ``changes``
(a finding as a variant), ``what_if`` (which variants are asked for) and ``intervals`` (how far that
may be off); ``limits`` says what a step waits for.
"""
