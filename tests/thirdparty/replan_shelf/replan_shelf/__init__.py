"""A suite of another package: nothing in replan names it."""
