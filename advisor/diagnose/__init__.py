"""From a dump and a source tree to a finished diagnosis.

In come paths and options, out comes a ``Diagnosis`` (``result``) with its report. Read
``diagnosis``, then ``ranks`` (which dump), ``findings`` (places joined with what was measured
there) and ``savings`` (nothing counted twice). ``source_scan`` does it without a dump
(``left_out`` says of what nothing is told then), ``explaining`` for one line; ``page_details``
and ``trace_tracks`` prepare what outputs draw.
"""
