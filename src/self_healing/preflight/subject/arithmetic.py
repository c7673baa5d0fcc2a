"""Simple calculations with values that are known; nothing that takes long or grows without end."""

from __future__ import annotations

import ast

from .values import UNKNOWN

_LARGEST_BITS = 256
"""Numbers beyond are nobody's setting."""


def calculated(left: object, op: ast.operator, right: object) -> object:
    """Return what a calculation gives, or UNKNOWN."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        value = _number(left, op, right)
        is_huge = isinstance(value, int) and value.bit_length() > _LARGEST_BITS
        return UNKNOWN if is_huge or isinstance(value, complex) else value
    if not isinstance(op, ast.Add | ast.Div | ast.BitOr):
        return UNKNOWN
    if isinstance(left, str) and isinstance(right, str):
        if isinstance(op, ast.Div):  # of paths, which are texts here
            return f"{left.rstrip('/')}/{right}"
        return left + right if isinstance(op, ast.Add) else UNKNOWN
    if isinstance(left, list) and isinstance(right, list) and isinstance(op, ast.Add):
        return left + right
    if isinstance(left, dict) and isinstance(right, dict) and isinstance(op, ast.BitOr):
        return left | right
    return UNKNOWN


def _number(left: float, op: ast.operator, right: float) -> object:
    try:
        match op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
            case ast.FloorDiv():
                return left // right
            case ast.Mod():
                return left % right
            case ast.Pow() if abs(left) < 1e6 and abs(right) < 64:
                return left**right
            case ast.LShift() if isinstance(left, int) and isinstance(right, int) and 0 <= right < 64:
                return left << right
    except (ArithmeticError, ValueError):
        return UNKNOWN
    return UNKNOWN


def compared(left: object, op: ast.cmpop, right: object) -> object:
    """Return what a comparison says, or UNKNOWN."""
    if left is UNKNOWN or right is UNKNOWN or isinstance(left, dict | list | tuple):
        return UNKNOWN
    match op:
        case ast.Eq():
            return left == right
        case ast.NotEq():
            return left != right
        case ast.Is() if left is None or right is None:
            return left is right
        case ast.IsNot() if left is None or right is None:
            return left is not right
    return UNKNOWN
