"""From a loop over the rows of tensors to the same computed for all rows at once.

``given.reading`` finds the loops: a ``for``, a comprehension that is stacked, a list that is filled
and then stacked. Each gets one shape, a domain (``range(n)``, ``enumerate(xs)``) and a body.

``given.values`` says what an expression of the body is as a function of the loop variable: the
``SAME`` in every round, a ``NUMBER`` that counts, or the ``ROWS`` of a tensor along an axis.

``expressions`` reads the body that way, operator by operator, as ``torch.vmap`` does, asking
``given.facts`` (the dataflow: ranks, lengths, which memory is shared), ``indexing`` (``x[i]``),
``facts.row_operators`` (what treats rows by themselves), ``batched`` (what has a rule of its own
for a batch), ``ragged`` (parts of rows) and ``submodules`` (the same of ``self.net``).

``statements`` does so for a whole body and writes what it becomes; where a rule of the game is
broken (a round needs the one before it, the rows have different lengths, somebody counts along) it
raises ``CannotBatchError`` with the reason, which is then what the finding says.

``advice`` says what a person writes instead where no text is.

``find`` is the door: the sites of a function. Their text comes as any other ``Rewrite``.
"""
