"""Objects beside tensors: arguments that are modules or optimisers, and what objects hold.

``offers`` makes layers, models, weights, optimisers and generators for arguments that are some,
``configurations`` those that models are made from; ``state`` reads what an object holds, and brings
it to a dtype.
"""
