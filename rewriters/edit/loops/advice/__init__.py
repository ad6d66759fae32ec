"""What a person writes instead of a loop for which the tool writes nothing.

``ragged`` knows parts of different lengths, ``rows`` what is padded, searched, or computed from the
rows before. Both read a loop as text, with what ``rounds`` says of its names, and return the form
as a sentence; ``facts.steps.weights`` knows those over a model's weights.
"""
