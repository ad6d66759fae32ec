"""CSV files as columns, and times without loss."""
