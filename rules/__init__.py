"""The tables: which slow pattern becomes what, one file per rule.

To read in this order: ``substitution``, ``diagnostic`` and ``cluster_diagnostic`` (the three kinds
of rule), ``shared``, then the rules in ``substitutions``, ``diagnostics`` and ``cluster``;
``registry`` finds them all. Imports run in this order alone.
"""

ENTRY_POINT_GROUP = "npufix.rules"
"""Where other packages name rules of theirs."""
