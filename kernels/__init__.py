"""GPU kernels, each next to the plain torch reference that it must agree with.

Importing this package imports neither torch nor Triton; a kernel's own module does.
"""
