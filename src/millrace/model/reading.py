"""Parses row expressions with sqlglot, and reads string literals by Spark's rules.

sqlglot and Spark disagree about quotes and backslashes in string literals. So each literal is replaced by a marker
before the text is parsed, decoded by Spark's rules, and put back into the tree.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from millrace.model.errors import refuse
from millrace.model.functions import check_count
from millrace.model.schema import DIALECT

_TOKENS = re.compile(
    r"""(?P<other>--[^\n]*|/\*.*?\*/|`(?:[^`]|``)*`|\b[xX]'[^']*')"""
    r"""|(?P<raw>\b[rR](?:'[^']*'|"[^"]*"))"""
    r"""|(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")""",
    re.DOTALL,
)
_ESCAPES = re.compile(
    r"""\\(?:u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<octal>[01][0-7]{2})|(?P<one>.))"""
    r"""|(?P<two>''|"")""",
    re.DOTALL,
)
_NAMED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": r"\%", "_": r"\_"}
_MARK = re.compile("\ue000(\\d+)\ue001")
"""The marker of a literal; its two delimiters are private-use characters of Unicode."""


def read_expression(sql: str) -> exp.Expr:
    """The tree of one expression. Text that does not parse, and a wrong number of arguments, are refused."""
    marked, texts = _marked(sql)
    with suppress(SqlglotError):  # the parser says what is wrong
        for name, count in _calls(marked):
            check_count(name, count)
    tree = _parsed(marked, sql)
    for node in list(tree.walk()):
        for name, value in node.args.items():
            if isinstance(value, str) and "\ue000" in value:
                node.args[name] = _MARK.sub(lambda mark: texts[int(mark[1])], value)
    return tree


def _marked(sql: str) -> tuple[str, list[str]]:
    """The expression with a marker for each string literal, and the texts of the literals."""
    texts: list[str] = []

    def take_out(found: re.Match[str]) -> str:
        if found["other"]:
            return found[0]
        texts.append(found[0][2:-1] if found["raw"] else unescaped(found[0]))
        return f"'\ue000{len(texts) - 1}\ue001'"

    return _TOKENS.sub(take_out, sql), texts


@dataclass(slots=True)
class _Open:
    """An open parenthesis or bracket."""

    name: str | None
    """The name before a parenthesis; None if there is none."""
    arguments: int = 0
    is_call: bool = True


def _calls(sql: str) -> Iterator[tuple[str, int]]:
    """The names before parentheses, each with the number of arguments as written: the parser may drop some.

    Leaves out names after a dot, forms with keywords, such as `extract(YEAR FROM at)`, and calls with `::`, because a
    type may contain commas.
    """
    held: list[_Open] = []
    before: list[Token] = []
    for token in sqlglot.tokenize(sql, dialect=DIALECT):
        kind = token.token_type
        if held and not held[-1].arguments and kind != TokenType.R_PAREN:
            held[-1].arguments = 1
        if kind in (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE):
            is_named = kind == TokenType.L_PAREN and before and before[-1].text.replace("_", "").isalnum()
            is_method = len(before) > 1 and before[-2].token_type == TokenType.DOT
            held.append(_Open(before[-1].text.lower() if is_named and not is_method else None))
        elif held and kind in (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END):
            closed = held.pop()
            if closed.name is not None and closed.is_call:
                yield closed.name, closed.arguments
        elif held and kind == TokenType.COMMA:
            held[-1].arguments += 1
        elif held and kind in (TokenType.FROM, TokenType.DCOLON):
            held[-1].is_call = False
        before = [*before[-1:], token]


def has_plus_sign(sql: str) -> bool:
    """Whether the text has a unary plus, which makes a number of text; the parser drops it."""
    before: TokenType | None = None
    for token in sqlglot.tokenize(sql, dialect=DIALECT):
        if token.token_type == TokenType.PLUS and before in _BEFORE_A_VALUE:
            return True
        before = token.token_type
    return False


_BEFORE_A_VALUE = {
    None, TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.COMMA, TokenType.PLUS, TokenType.DASH, TokenType.STAR,
    TokenType.SLASH, TokenType.MOD, TokenType.DIV, TokenType.DPIPE, TokenType.EQ, TokenType.NEQ, TokenType.LT,
    TokenType.LTE, TokenType.GT, TokenType.GTE, TokenType.NULLSAFE_EQ, TokenType.AND, TokenType.OR, TokenType.NOT,
    TokenType.CASE, TokenType.WHEN, TokenType.THEN, TokenType.ELSE, TokenType.BETWEEN, TokenType.LIKE, TokenType.AMP,
    TokenType.PIPE, TokenType.CARET, TokenType.TILDE,
}  # fmt: skip


def unescaped(literal: str) -> str:
    r"""The text that a quoted string stands for.

    >>> unescaped(r"'it''s\n'")
    "it's\n"
    """
    read = _ESCAPES.sub(lambda found: _escaped(found, literal[0]), literal[1:-1])
    # Java's strings are UTF-16, so one character may be written as two escapes.
    return read.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(found: re.Match[str], quote: str) -> str:
    if found["two"]:
        return quote if found["two"][0] == quote else found["two"]
    code = found["short"] or found["long"]
    if code is not None:
        return chr(int(code, 16))
    return chr(int(found["octal"], 8)) if found["octal"] else _NAMED.get(found["one"], found["one"])


def _parsed(sql: str, given: str) -> exp.Expr:
    try:
        trees = sqlglot.parse(sql, dialect=DIALECT)
    except SqlglotError as error:
        reason = str(error).splitlines()[0].replace("\x1b[4m", "").replace("\x1b[0m", "")
        if reason.startswith("Required keyword"):  # the message names a class of sqlglot
            reason = "an operand is missing"
        advice = "write AND instead of &&" if "&&" in sql else None
        raise refuse(f"expression {given!r} does not parse: {reason}", advice=advice) from None
    except LookupError:  # of sqlglot, for map(a)
        problem = f"expression {given!r} does not parse: a function has a wrong number of arguments"
        raise refuse(problem) from None
    if len(trees) != 1 or trees[0] is None:
        raise refuse(f"{given!r} must be exactly one expression")
    return trees[0]
