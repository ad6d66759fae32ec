"""Objects beside tensors: arguments that are modules or optimisers, and what objects hold.

``offers`` makes layers, models, weights, optimisers and generators for arguments that are some,
``training_loops`` what loops over batches take apart, for arguments and for what a class keeps
(``kept``), ``configurations`` those that models are made from; ``state`` reads what an object
holds, and brings it to a dtype, ``copying`` copies it; ``openmmlab`` stands for packages of that
name.
"""
