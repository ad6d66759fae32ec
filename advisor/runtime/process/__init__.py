"""The changes that are in force in this process.

``switches`` (and ``settings_file``) say what is wanted, ``applying`` puts it in force: ``hook``
changes what is imported from now on, ``rebinding`` the functions that are there already.
``reporting`` says what became of it.
"""
