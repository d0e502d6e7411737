"""Random texts and questions of a few words, so that each question concerns many documents."""

from __future__ import annotations

import random

NOUNS = [f"noun{number}" for number in range(25)]
VERBS = ["builds", "sells", "paints", "finds"]
QUESTIONS = [f"Who {verb} the {noun}?" for noun in NOUNS[:8] for verb in VERBS[:2]]


def text(chance: random.Random) -> str:
    """Up to four sentences about a few nouns; the first nouns are common."""
    return " ".join(
        f"Person{chance.randrange(1000)} {chance.choice(VERBS)} the {NOUNS[int(25 * chance.random() ** 2)]}"
        f"{' with many other people' * chance.randrange(3)}."
        for _ in range(chance.randint(1, 4))
    )
