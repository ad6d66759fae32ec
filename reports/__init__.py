"""What people and programs get to read: results come in, texts and files go out.

In: a finished ``Report`` (diagnose, scan, patch), ``GateReport``, ``Comparison`` or
``Verification``, each a tree of plain values in a file of this folder. Out: the terminal, and
whatever ``-o FORMAT=FILE`` names. To read in this order, each knows only what is before it:

    report, gate_report, comparison, verification   what a result holds
    language/    English or Chinese, decided where a text is put out
    wording/     the numbers and sentences that all outputs share
    data/        a result as rows, notices and events, for programs
    terminal/    a result on a terminal
    markdown/    a result in a comment, a summary, a file
    html/        a result as one page
    formats/     one file an output: its name, and which of the above makes it
"""
