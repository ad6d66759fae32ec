"""What to call with: the function out of its module, and arguments under which it runs.

``load`` executes what a function needs of its file (``slicing``), with the other files of the
change in the same version (``overlay``); ``target`` is that function. ``search`` combines guesses
at each parameter (``arguments``, in ``base_shapes``) and objects to call it on (``recipes``,
``configurations``), led by the tests above a line (``path_conditions``). ``assumptions`` says
which calls keep what the user vouches for; ``cases`` makes the calls worth comparing.
"""
