"""What was found in source code, kept in the user's cache folder for the next time.

``stored`` keeps bytes, ``found`` makes them of what was found.
"""
