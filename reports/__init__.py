"""A finished diagnosis in, something a person or a CI server reads out."""
