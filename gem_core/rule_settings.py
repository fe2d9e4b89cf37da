"""A rule's settings as people write them: NAME=VALUE,NAME=VALUE."""

import math

__all__ = ["parse_settings", "settings_text"]


def settings_text(value: object) -> object:
    """Settings as text: a table becomes NAME=VALUE pairs; text is looked at, and stays; other values are not ours.

    Raises:
        ValueError: the text is not written so.
    """
    text = ",".join(f"{name}={one}" for name, one in value.items()) if isinstance(value, dict) else value
    if isinstance(text, str):
        parse_settings(text)
    return text


def parse_settings(text: str) -> dict[str, float]:
    """`"alpha=0.1, period=5"` -> `{"alpha": 0.1, "period": 5.0}`; `create_rule` judges names and values.

    Raises:
        ValueError: it is not written so.
    """
    found: dict[str, float] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (part.strip() for part in pair.partition("="))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or not name or not math.isfinite(number):
            raise ValueError(f"{pair!r} is not NAME=VALUE with a number; write for example alpha=0.1,period=5")
        if name in found:
            raise ValueError(f"{name} is given twice: leave one of them out")
        found[name] = number
    return found
