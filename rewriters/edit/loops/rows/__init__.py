"""Loops of which all rounds do the same with parts of rows that a mask or a length picks."""
