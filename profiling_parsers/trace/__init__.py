"""The events of a trace, streamed: gigabytes of JSON in bounded memory.

In: trace_view.json or a Kineto trace, packed or not. Out: ``Trace``, the tables of what leads from
a kernel to a line. To read in the order of the bytes: unpacked.py, json_stream.py, rows.py (values
to columns), collector.py, view.py. device_events.py finds the kernels of another file in a trace;
copied.py writes a trace again, event by event.
"""
