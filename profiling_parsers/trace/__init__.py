"""trace_view.json, streamed."""
