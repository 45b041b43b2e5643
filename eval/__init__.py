"""Evaluation: cells, the clock, worker processes, provenance and the command line.

The only package that knows all the others. Importing it, or :mod:`.cli`, imports neither torch nor MuJoCo.
"""
