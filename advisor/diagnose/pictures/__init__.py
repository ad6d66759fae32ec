"""What the pictures of the HTML page are drawn from, one file a picture.

In: the evidence and the signals of a run. Out: the structures of ``reports.html.details``.
"""
