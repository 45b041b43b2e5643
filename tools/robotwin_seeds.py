"""Finds the scenes that upstream's expert solves on the stand-in assets, and stores them with the package.

Usage: python tools/robotwin_seeds.py TASK...
Tasks that are stored for these assets and versions are kept; others are searched one after the other.
"""

import sys

from replan.envs.robotwin import seeds
from replan.envs.robotwin.source import open_standin

if __name__ == "__main__":
    opened = open_standin()
    seeds.compute(opened.world, opened.fingerprint, sys.argv[1:], seeds.STORED)
