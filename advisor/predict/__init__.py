"""What a step would be after a change: the recorded step is run again without what goes.

In come the evidence of a run and its findings with their ``Change`` (``evidence.change``), out
come ``Predictions``. Read ``step_graph`` (what is known of a step), ``recorded`` and ``waits``
(how it is seen in a recording), ``replay`` (the step in many variants at once), ``changes``
(a finding as a variant) and ``what_if`` (which variants are asked for); ``limits`` says what a
step waits for.
"""
