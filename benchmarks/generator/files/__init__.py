"""In: a run. Out: the files of a dump, each as one version of the profiler writes it."""
