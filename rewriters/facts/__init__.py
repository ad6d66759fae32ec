"""What the source, or the recording, proves about the values at a match.

In: a ``FunctionFlow`` and a ``Match``. Out: answers to the questions that a rule's conditions ask
(the protocol ``npufix.rules.substitution.Site``): yes, no, or ``None`` if it is not known.

Read ``site_facts`` first, which has all questions; ``shapes``, ``kinds``, ``index_facts``,
``attention_facts``, ``activations``, ``origins`` and ``module_facts`` answer them.
``recorded_facts`` adds what a profile saw. ``chosen`` tells where the author has decided already.
"""
