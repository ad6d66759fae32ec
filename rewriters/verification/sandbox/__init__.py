"""Walls around the user's code: what a process of a job may do, and how it is started and ended.

``fork_server`` forks a process for each ``Question`` (``messages``) and answers with a ``Reply``.
Before it runs any code, that process limits itself: memory and time (``limits``), what Python is
asked to do (``guard``), files (``landlock``), other system calls (``system_calls``).
``job_folders`` bounds and removes what it writes, ``preloading`` imports for the next one what it
has imported. ``try_call`` is the one place that calls the user's code and catches what it raises.
"""
