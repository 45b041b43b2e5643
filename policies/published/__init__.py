"""Weights as their authors publish them: one strict reader, and a file per layout."""
