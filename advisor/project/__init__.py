"""The user's project: its configuration and its source files.

In comes a folder, out come settings, files and the sites that rules find in them. Read
``source_tree``, ``configuration`` (with ``gate_settings``, ``units``, ``known_names``), then
``scanning``, which searches all files on all cores and keeps (``kept``) what it finds in each, and
``kept_tree``, which keeps what was found in all of them.
"""
