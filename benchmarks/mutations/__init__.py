"""How many wrong changes the verifier refutes, and how many right ones: a mutation score.

``functions`` finds functions of released packages, ``wrong`` and ``right`` change them one place at
a time, ``campaign`` has them verified, ``larger`` asks of those that were called equivalent whether
they differ on larger inputs. ``python -m benchmarks.mutations --functions 20`` does a part of it.
"""
