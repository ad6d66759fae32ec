"""What crosses between host and device: values that the host reads, numbers that it copies there.

Read ``waits.reads`` (what hands a value over), ``host_values`` (who needs it), ``element_reads``
(what loops read one by one), then ``uploads``, ``filled``, ``doubles`` and ``device_waits``.
"""
