"""What programs do around their models: optimizers, loaders, collectives, caches of inference.

Each module holds searches as in the folder above, which ``searches`` lists.
"""
