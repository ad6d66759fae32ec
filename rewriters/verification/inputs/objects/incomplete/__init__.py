"""What an object holds that no ``__init__`` has set.

``unmade`` does without it, and gives weights numbers as after training; ``late`` sets what other
methods or other objects set afterwards. Depends on ``inputs.source`` and on the other modules of
``inputs.objects``.
"""
