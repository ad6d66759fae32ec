"""Running a program with the changes of the rules, in memory: nothing on disk changes."""
