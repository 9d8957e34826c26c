# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd reads from a unit and from an environment file, after its documentation and its observed behaviour.

Written apart from the code that quotes, and by other means: characters are eaten one by one, as systemd does.
"""

from __future__ import annotations

ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", '"': '"', "'": "'", "s": " ",
}  # fmt: skip


def directive(unit_text: str, name: str) -> str:
    """The value of a directive that occurs once, its continuation lines joined."""
    joined: list[str] = []
    pending = ""
    for line in unit_text.split("\n"):
        if line.lstrip().startswith(("#", ";")):
            continue
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending += line[:-1] + " "
            continue
        joined.append(pending + line)
        pending = ""
    (value,) = [line.split("=", 1)[1] for line in joined if line.startswith(name + "=")]
    return value.strip()


def command(value: str) -> list[str]:
    """argv of an ExecStart= value with the prefix that switches the expansion of variables off."""
    words = [_specifiers(word) for word in words_of(value)]
    assert words[0].startswith(":/")
    return [words[0][1:], *words[1:]]


def words_of(value: str) -> list[str]:
    """Words with quotes removed and C escapes resolved."""
    words: list[str] = []
    word: bytearray | None = None
    quote = ""
    rest = list(value)
    while rest:
        char = rest.pop(0)
        if char == "\\":
            word = (word or bytearray()) + _escape(rest)
        elif quote:
            if char == quote:
                quote = ""
            else:
                word = (word or bytearray()) + char.encode()
        elif char in "'\"":
            quote = char
            word = word or bytearray()
        elif char in " \t\n\r":
            if word is not None:
                words.append(word.decode())
                word = None
        else:
            if word is None:
                assert char != ";" or (rest and rest[0] not in " \t\n"), "a lone ; would begin a second command"
            word = (word or bytearray()) + char.encode()
    assert not quote, "unbalanced quotes"
    if word is not None:
        words.append(word.decode())
    return words


def _escape(rest: list[str]) -> bytes:
    char = rest.pop(0)
    if char == "x":
        return bytes([int(rest.pop(0) + rest.pop(0), 16)])
    return ESCAPES[char].encode()


def _specifiers(word: str) -> str:
    kept, rest = "", word
    while "%" in rest:
        before, rest = rest.split("%", 1)
        assert rest.startswith("%"), "a specifier would be expanded"
        kept, rest = kept + before + "%", rest[1:]
    return kept + rest


def environment(text: str) -> dict[str, str]:
    """Variables of an environment file, as a process would get them."""
    found: dict[str, str] = {}
    rest = list(text)
    while rest:
        name = ""
        while (char := rest.pop(0)) != "=":
            name += char
        found[name] = _value(rest)
    return found


def _value(rest: list[str]) -> str:
    value, quoted = "", False
    while rest:
        char = rest.pop(0)
        if quoted:
            if char == '"':
                quoted = False
            elif char == "\\":
                following = rest.pop(0)
                if following in '"\\`$':
                    value += following
                elif following != "\n":
                    value += "\\" + following
            else:
                value += char
        elif char == "\n":
            return value
        elif char == '"':
            quoted = True
        else:
            assert char not in "\\' \t", "only plain text may stand outside quotes"
            value += char
    raise AssertionError("the last line does not end")
