"""Running a program with the changes of the rules, in memory: nothing on disk changes.

In comes a program (``npufix run``: ``program``), a call of ``apply_fused_kernels()`` (``api``), or
a process that one of these has started (``startup``, ``children``); out comes the same program on
fused operators and a report of what was replaced. To be read from below, each room uses only those
before it: ``calls`` (what is asked at each call of the new code), ``source`` (one module's text in,
its changed code out), ``process`` (the changes in force: import hook, switches, report),
``modules`` (one model that is built already), then the files here.
"""
