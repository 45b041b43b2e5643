"""GPU kernels, each beside the plain torch reference that it must agree with.

Importing this package imports neither torch nor Triton; a kernel's own module does.
"""
