"""What crosses between host and device: values that the host reads, numbers that it copies there.

Read ``host_values`` (who needs what is read), ``element_reads`` (what loops read one by one), then
``uploads``, ``filled``, ``doubles`` and ``device_waits``.
"""
