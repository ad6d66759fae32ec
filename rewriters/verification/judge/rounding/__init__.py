"""What rounding may leave, and what it may not.

``small_numbers``
    Where small numbers beside large ones have lost the digits that the original has.
"""
