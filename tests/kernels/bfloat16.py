"""bfloat16 in Triton's interpreter, which holds it as 16-bit integers and calculates with these bits as with integers.

``install`` replaces private parts of Triton: products, sums and conversions are made in float32 and rounded to nearest
even, as a GPU does it. tests/kernels/agreement.py begins with a test that fails where a release of Triton breaks this.
"""

from __future__ import annotations

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

BITS = {np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift}


def widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16 as bits -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """Float32 -> bfloat16 as bits, to nearest even; every NaN becomes the same one."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def is_bfloat16(handle) -> bool:
    return not isinstance(handle.dtype, tl.pointer_type) and handle.dtype.scalar == tl.bfloat16


def install() -> None:
    """Changes the interpreter of this process."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    binary_op, unary_op, cast_impl = builder.binary_op, builder.unary_op, builder.cast_impl
    create_fp_to_fp, create_dot, create_fma = builder.create_fp_to_fp, builder.create_dot, builder.create_fma
    reduced = interpreter.ReduceOps.apply_impl

    def value(each):
        return widen(each.data) if is_bfloat16(each) else each.data

    def result(values):
        return handle(values, tl.int1) if values.dtype == np.bool_ else handle(narrow(values), tl.bfloat16)

    def binary(self, left, right, op):
        if op in BITS or not (is_bfloat16(left) or is_bfloat16(right)):
            return binary_op(self, left, right, op)
        return result(op(value(left), value(right)))

    def unary(self, each, op):
        return result(op(value(each))) if is_bfloat16(each) else unary_op(self, each, op)

    def fma(self, x, y, z):
        return result(value(x) * value(y) + value(z)) if is_bfloat16(z) else create_fma(self, x, y, z)

    def cast(self, source, target):
        now, then = source.dtype.scalar, target.scalar
        if now == then or tl.bfloat16 not in (now, then):
            return source if now == then else cast_impl(self, source, target)
        if now == tl.bfloat16:
            wide = handle(widen(source.data), tl.float32)
            return wide if then == tl.float32 else cast_impl(self, wide, target)
        return handle(narrow(source.data.astype(np.float32)), tl.bfloat16)

    def between_floats(self, source, target, rounding):
        kinds = (source.dtype.scalar, target.scalar)
        if tl.bfloat16 in kinds and all(kind.primitive_bitwidth > 8 for kind in kinds):
            return cast(self, source, target)
        return create_fp_to_fp(self, source, target, rounding)

    def dot(self, a, b, total, precision, imprecise):
        if not (is_bfloat16(a) or is_bfloat16(b)):
            return create_dot(self, a, b, total, precision, imprecise)
        return handle(np.matmul(value(a), value(b)) + total.data, total.dtype.scalar)

    def reduce(self, given):
        for each in given if isinstance(given, (list, tuple)) else [given]:
            if getattr(each, "dtype", None) is not None and each.dtype.scalar == tl.bfloat16:
                raise TypeError("a reduction in bfloat16 loses what a GPU would keep: convert to float32 first")
        return reduced(self, given)

    builder.binary_op, builder.unary_op, builder.create_fma, builder.cast_impl = binary, unary, fma, cast
    builder.create_fp_to_fp, builder.create_dot = between_floats, dot
    for name in ("fp_trunc", "fp_ext", "si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui"):
        setattr(builder, f"create_{name}", lambda self, source, target: self.cast_impl(source, target))
    builder.get_bf16 = lambda self, number: handle(narrow(np.array([number], np.float32)), tl.bfloat16)
    interpreter.ReduceOps.apply_impl = reduce
