"""What several rules share, by what they look at.

``operands`` (values to try and conditions, for substitutions), ``recording`` (measures of one
profile, for diagnostics), ``ranks`` (measures of a job, for cluster diagnostics). The rule kinds
themselves stand above; nothing here imports a rule.
"""
