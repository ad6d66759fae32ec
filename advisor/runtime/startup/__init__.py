"""A folder for PYTHONPATH: what Python imports when it starts (see ``children``)."""
