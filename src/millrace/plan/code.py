"""A user's function as a value that changes when its code does.

The value comes from the syntax tree of the function, so that comments, layout and the version of Python do not matter.
It covers what the function refers to in its own file: other functions and classes, constants, captured variables.
Where there is no source text (code run by `exec`), it comes from the bytecode.
"""

import ast
import functools
import hashlib
import inspect
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

_LIBRARIES = tuple(
    Path(path)
    for path in {*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
                 *site.getsitepackages(), site.getusersitepackages()}
)  # fmt: skip
"""Where installed modules are; what lies elsewhere is the user's."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def code_hash(function: Callable[..., Any]) -> str:
    """A short hash of a function's code and of everything in its file that the code refers to."""
    digest = hashlib.sha256("\n".join(_lines(function, set())).encode())
    return digest.hexdigest()[:16]


def _lines(value: Any, seen: set[int]) -> Iterator[str]:
    """The code of a value, one line for each part."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, functools.partial):
        yield "partial"
        for part in (value.func, *value.args, *(item for pair in sorted(value.keywords.items()) for item in pair)):
            yield from _lines(part, seen)
    elif inspect.ismethod(value):
        yield from _lines(value.__func__, seen)
        yield from _lines(value.__self__, seen)
    elif isinstance(value, FunctionType):
        yield _syntax(value) or _bytecode(value.__code__)
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            yield from _state(default, seen)
        yield from _referred(value, seen)
    elif isinstance(value, type) and _is_theirs(value):
        yield f"class {value.__qualname__}"
        for base in value.__bases__:
            yield from _state(base, seen)
        for name, member in sorted(vars(value).items()):
            if isinstance(member, FunctionType | staticmethod | classmethod | property):
                yield name
                yield from _lines(_function_of(member), seen)
            elif not name.startswith("__") and isinstance(member, _PLAIN):
                yield f"{name} {member!r}"
    elif _is_theirs(type(value)):
        yield from _lines(type(value), seen)
        yield from _state(getattr(value, "__dict__", None), seen)
    else:
        yield f"{type(value).__name__} {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _referred(function: FunctionType, seen: set[int]) -> Iterator[str]:
    """What a function refers to: captured variables, and globals of its own file."""
    captured = inspect.getclosurevars(function)
    for name, value in sorted({**captured.globals, **captured.nonlocals}.items()):
        yield name
        yield from _state(value, seen)


def _state(value: Any, seen: set[int]) -> Iterator[str]:
    """A value that code depends on: plain values as they are, functions and classes of the user's file as code."""
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {len(value)}"
        for item in value:
            yield from _state(item, seen)
    elif isinstance(value, dict):
        yield f"dict {len(value)}"
        for key, item in sorted(value.items(), key=lambda pair: repr(pair[0])):
            yield repr(key)
            yield from _state(item, seen)
    elif isinstance(value, set | frozenset):
        yield from sorted(map(repr, value))
    elif _is_theirs(value if isinstance(value, type | FunctionType) else type(value)):
        yield from _lines(value, seen)
    else:  # a module, or something from one: its name is all that is known to stay
        yield f"{type(value).__name__} {getattr(value, '__module__', '')}.{getattr(value, '__name__', '')}"


def _is_theirs(value: Any) -> bool:
    """Whether a function or a class is the user's own, not a library's."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if file is None:
        return module is None or module.__name__ == "__main__"
    return not any(Path(file).is_relative_to(library) for library in _LIBRARIES)


def _function_of(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def _syntax(function: FunctionType) -> str | None:
    """The syntax tree of a function as text, without name, decorators, annotations, docstring; None if unknown."""
    code = function.__code__
    try:
        lines, _ = inspect.findsource(function)
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and code.co_firstlineno in (node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ())))
        and getattr(node, "name", "<lambda>") == code.co_name
    ]
    if len(found) > 1:  # lambdas on one line: the one that holds the first instruction
        at = {(line, column) for line, _, column, _ in code.co_positions() if line is not None and column is not None}
        found = [node for node in found if isinstance(node, ast.Lambda) and _start(node.body) in at]
    if len(found) != 1:
        return None
    (node,) = found
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    if ast.get_docstring(node, clean=False) is not None if not isinstance(node, ast.Lambda) else False:
        body = body[1:]
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return " ".join([*(each.arg for each in arguments), *map(ast.dump, body)])


def _start(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _bytecode(code: CodeType) -> str:
    nested = [_bytecode(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {nested}"
