"""The text export of the PyTorch profiler: CSV and JSON files, and trace_view.json.

In: the folder of the analysed files. Out: a ``Profile``. Begin at export.py; kernel_details.py
reads the kernels, trace_*.py those of a trace where nothing else lists them; side_files.py has one
reader per further file.
"""
