"""The shared objects of a torch_npu wheel: what they need, and empty ones that offer it.

``wheels`` finds the installed wheel, ``elf_reader`` reads its libraries, ``requirements`` says
what they want of CANN, and ``elf_writer`` writes libraries of that (``elf_format`` is what both
know). ``entry_points`` says how the functions are declared and what those return that do nothing.
Each of the ``errors`` is one line: what, where, and what to do.
"""
