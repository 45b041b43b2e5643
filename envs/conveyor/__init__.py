"""Conveyor sorting: pick the named object off a moving belt and put it into the named bin."""
