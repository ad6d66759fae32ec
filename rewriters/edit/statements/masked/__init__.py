"""What a mask selects: sums and means of it, and formulas that are written back."""
