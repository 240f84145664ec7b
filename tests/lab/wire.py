# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Read how a wire between two nodes treats packets, in the words of tc-netem(8)."""
import re

FRACTION = r"(?:100|\d{1,2})(?:\.\d+)?%"
TIME = r"\d+(?:\.\d+)?(?:us|ms|s)"
VALUES = {"loss": FRACTION, "reorder": FRACTION, "duplicate": FRACTION, "corrupt": FRACTION,
          "delay": TIME}
EXAMPLES = "loss 2% reorder 10% duplicate 1% corrupt 1% delay 5ms"
# Reordering needs a delay, because a packet can overtake only delayed packets.
OVERTAKEN_FOR = "1ms"


def netem(text):
    """The arguments of netem for a wire; ValueError names the mistake."""
    words = text.split()
    if not words or len(words) % 2:
        raise ValueError(f"expected pairs such as {EXAMPLES}, not {text!r}")
    wanted = {}
    for name, value in zip(words[::2], words[1::2]):
        if name not in VALUES:
            raise ValueError(f"{name} is none of {', '.join(VALUES)}")
        if name in wanted:
            raise ValueError(f"{name} is given twice")
        if not re.fullmatch(VALUES[name], value):
            example = EXAMPLES.split()[EXAMPLES.split().index(name) + 1]
            raise ValueError(f"{name} {value} should be like {name} {example}")
        wanted[name] = value
    if "reorder" in wanted:
        wanted.setdefault("delay", OVERTAKEN_FOR)
    return " ".join(f"{name} {value}" for name, value in sorted(wanted.items()))
