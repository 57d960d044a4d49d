"""The machine instructions that compiled code uses, and the decorators that compile functions with Numba.

Numba stores compiled code, and compiles again when the file of a function changes, but does not see changes of what it
calls in other files: after a change here, remove the `__pycache__` beside it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

STEP = 32
"""How many bytes are compared or copied at a time."""
_BYTES, _WIDE = ir.VectorType(ir.IntType(8), STEP), ir.VectorType(ir.IntType(8), 64)

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function when it is first called, or take what was compiled before."""
    return numba.njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """Compile a function as a part of those that call it."""
    return numba.njit(forceinline=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def byte(typing: Any, address: Any) -> Any:
    """The byte at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = builder.load(builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return builder.zext(found, ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load(typing: Any, address: Any) -> Any:
    """The eight bytes from an address on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy(typing: Any, to: Any, by: Any) -> Any:
    """Copy `STEP` bytes from one address to another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, by = (builder.inttoptr(each, _BYTES.as_pointer()) for each in arguments)
        builder.store(builder.load(by, align=1), to, align=1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def special_in(typing: Any, address: Any) -> Any:
    """The number of the first quote, backslash or control character of the next `STEP` bytes; `STEP` if none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bytes = builder.load(builder.inttoptr(arguments[0], _BYTES.as_pointer()), align=1)
        quotes, backslashes, spaces = (ir.Constant(_BYTES, [sign] * STEP) for sign in (34, 92, 32))
        found = builder.or_(
            builder.or_(builder.icmp_unsigned("==", bytes, quotes), builder.icmp_unsigned("==", bytes, backslashes)),
            builder.icmp_unsigned("<", bytes, spaces),
        )
        bits = builder.bitcast(found, ir.IntType(STEP))
        first = builder.cttz(bits, ir.Constant(ir.IntType(1), 0))
        return builder.zext(first, ir.IntType(64)) if STEP < 64 else first

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def line_breaks(typing: Any, address: Any) -> Any:
    """Which of the next 64 bytes are line breaks, as bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bytes = builder.load(builder.inttoptr(arguments[0], _WIDE.as_pointer()), align=1)
        return builder.bitcast(builder.icmp_unsigned("==", bytes, ir.Constant(_WIDE, [10] * 64)), ir.IntType(64))

    return types.uint64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def not_ascii(typing: Any, address: Any) -> Any:
    """Which of the next 64 bytes are not ASCII, as bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bytes = builder.load(builder.inttoptr(arguments[0], _WIDE.as_pointer()), align=1)
        return builder.bitcast(builder.icmp_signed("<", bytes, ir.Constant(_WIDE, [0] * 64)), ir.IntType(64))

    return types.uint64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def first_bit(typing: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate
