"""What to call with: the function out of its module, and arguments under which it runs.

``load`` executes what a function needs of its file, with the other files of the change in the same
version (``overlay``); ``target`` is that function. ``source`` reads what the code says of its
arguments; ``search`` combines guesses at each of them (``arguments`` and ``objects``, in
``base_shapes``) and objects to call it on (``recipes``), fresh ones and some of which other methods
have been called (``histories``). ``cases`` makes the calls worth comparing: ``trials`` of the
original tell which sizes are independent (``axes``) and which other tensors mean the same
(``forms``). ``assumptions`` says which calls keep what the user vouches for.
"""
