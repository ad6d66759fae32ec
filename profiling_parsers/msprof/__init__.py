"""What ``msprof`` exports below PROF_*."""
