"""The tokens of selectors (CEL): enough to recognise what selectors of our own claims say. Nothing is evaluated."""

from __future__ import annotations

import json
import re

from hami.codec.claim_amounts import MAX_EXPRESSION

Token = tuple[str, str]
"""The kind of a token (``text``, ``number``, ``word``, ``sign``), and how it is written."""

_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|\'[^\'\\]*\')|(?P<number>-?[0-9]+)'
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>&&|\|\||[=!<>]=|[!<>().,\[\]]))"
)


def tokens_of(text: str) -> list[Token]:
    """Returns the tokens of *text*; none if it is no expression of this kind."""
    if len(text.encode(errors="surrogatepass")) > MAX_EXPRESSION:
        return []
    tokens: list[Token] = []
    end, text = 0, text.rstrip()
    while end < len(text):
        match = _TOKEN.match(text, end)
        if match is None:
            return []
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind]))
        end = match.end()
    return tokens


def text_of(token: Token) -> str | None:
    """Returns the text that the literal *token* stands for; ``None`` if it is no such literal."""
    kind, literal = token
    if kind != "text":
        return None
    if literal.startswith("'"):
        return literal[1:-1]
    try:
        return str(json.loads(literal))
    except ValueError:
        return None
