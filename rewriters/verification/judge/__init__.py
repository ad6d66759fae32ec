"""Whether two versions differ: both are called, a third run decides where numbers differ.

``verify_function`` takes a job through it; ``verify_rule`` does for the functions of a rule.
``observe_case`` calls one version, ``compare_versions`` both of them in every case, with
``call_again`` after other calls too. ``judge`` decides by the error of the original, with
``allowances`` and ``rounding`` where that says too little, ``randomness`` where both draw numbers;
``plausibility`` says which differences a caller sees, ``halves`` which of them are those of odd
sizes. ``shrink`` makes a difference small, ``programs`` writes it as a program; where there is
none, ``checks`` asks what else must hold.
``evidence`` gathers all of it, as ``difference``s; ``enough`` says when that will do.
"""
