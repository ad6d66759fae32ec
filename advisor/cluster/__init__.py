"""Many ranks of one job: what each does, which of them matter, and how they compare."""
