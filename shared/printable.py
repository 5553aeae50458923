"""Texts of others in a terminal: ids, reasons and log lines may have characters that control it."""


def printable(text: str) -> str:
    r"""The text with all other characters escaped, line breaks too: one text can't pass for two.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
