"""Walls around the user's code: what a process of a job may do, and how it is started and ended.

``fork_server`` forks three processes for each ``Question`` (``messages``), which are
``job_processes``: a judge, and one for each version of the code. It answers with a ``Reply``.
Before it runs any code, a process limits itself: memory and time (``limits``), what Python is
asked to do (``guard``), files (``landlock``), other system calls (``system_calls``). The judge has
functions run where a version is loaded (``remote``), and gets what they return as data
(``transport``). Torch does without its compiler there (``no_compiler``).
``job_folders`` bounds and removes what it writes, ``preloading`` imports for the next one what it
has imported. ``try_call`` is the one place that calls the user's code and catches what it raises.
"""
