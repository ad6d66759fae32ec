"""What code says of training: the form of batches and results (``loops``), and ``losses``."""
