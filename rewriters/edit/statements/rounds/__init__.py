"""What the rounds of a loop have in common: what they compute anew, and what they write into."""
