"""LIBERO: 130 tasks of a table-top arm in five suites, with their standard initial states."""
