"""One call: make it, on whatever it runs, and write down everything that it did."""
