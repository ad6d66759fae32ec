"""Many ranks: the small files of each, as a small summary that travels and can be kept."""
