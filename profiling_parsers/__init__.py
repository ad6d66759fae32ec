"""Bytes of a profiling dump in, one ``Profile`` out."""
