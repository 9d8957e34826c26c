# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Text from other people's processes made fit to show: no secrets, no control characters, not too long."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

MASK = "********"
LIMIT = 256
"""Characters of a string in a result."""

_SHORTEST_SECRET = 4
"""A shorter value is not hidden by value: hiding every 8 in the output would hide the output."""
_LONGEST_SECRET = 4096

_NAME = r"(?:api[-_.]?keys?|[-_.]key|token|secret|passw(?:or)?d|passphrase|credentials?|authorization)"

# The name must END in one of these words: --max-num-batched-tokens and --tokenizer hold no secret.
_SECRET_NAME = re.compile(rf"{_NAME}$|^key$", re.IGNORECASE)

# Names are bounded so that a hostile megabyte of dashes costs a megabyte of steps, not its square.
_IN_TEXT = (
    # --api-key VALUE, --hf-token=VALUE
    re.compile(rf"(--?[\w.-]{{0,64}}{_NAME}(?:\s+|=)[\"']?)([^\s\"',\]}}]+)", re.IGNORECASE),
    # VLLM_API_KEY=VALUE, but no sentence that happens to hold `key=`
    re.compile(r"(\b[A-Z0-9_]{0,64}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)=[\"']?)([^\s\"']+)"),
    # "api_key": "VALUE", 'api_key': ['VALUE']
    re.compile(rf"([\"'][\w.-]{{0,64}}{_NAME}[\"']\s*:\s*\[?\s*[\"'])([^\"']+)", re.IGNORECASE),
    # https://host/hook?token=VALUE
    re.compile(rf"([?&][\w.-]{{0,64}}{_NAME}=)([^\s&\"'#]+)", re.IGNORECASE),
    # https://NAME:VALUE@host
    re.compile(r"(://[^\s:/@]{0,64}:)([^\s/@]+)(?=@)"),
    re.compile(r"(\bBearer\s+)([\w.~+/=-]+)", re.IGNORECASE),
    # Hugging Face and OpenAI style tokens, wherever they stand.
    re.compile(r"(\b(?:hf_|sk-))([A-Za-z0-9_-]{16,})"),
)


def is_secret_name(name: str) -> bool:
    """Whether a flag or an environment variable of this name holds a secret."""
    return _SECRET_NAME.search(name.lstrip("-")) is not None


def mask_text(text: str, secrets: Collection[str] = ()) -> str:
    """The text without the given values and without what stands where a secret usually stands."""
    # Longest first: one secret may be the beginning of another.
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    for pattern in _IN_TEXT:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text


def printable(text: str, limit: int = LIMIT) -> str:
    """One line of at most limit characters that a terminal shows as it is; what it would obey is escaped."""
    # A megabyte of somebody's command line is not worth escaping; each character may grow tenfold, none shrinks.
    text = text[: limit + 1]
    text = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
    return text if len(text) <= limit else text[: limit - 3] + "..."


def mask_argv(argv: Sequence[str], secrets: Collection[str] = (), limit: int = LIMIT) -> list[str]:
    """The words of a command line, the values of its secret flags masked, each printable and at most limit long."""
    words: list[str] = []
    hide = False
    for word in argv:
        flag, equals, dummy = word.partition("=")
        if hide:
            words.append(MASK)
        elif equals and is_secret_name(flag):
            words.append(printable(f"{flag}={MASK}", limit))
        else:
            # Cut far behind what is shown, so that no secret is cut in two and missed.
            words.append(printable(mask_text(word[: limit + _LONGEST_SECRET], secrets), limit))
        hide = not hide and not equals and word.startswith("-") and is_secret_name(word)
    return words


def mask_command(argv: Sequence[str], secrets: Collection[str] = (), limit: int = LIMIT) -> str:
    """A command line as one printable line of at most limit characters, its secrets masked."""
    # No word is shorter than nothing and a blank: more words than this are not shown.
    return printable(" ".join(mask_argv(argv[:limit], secrets, limit)), limit)
