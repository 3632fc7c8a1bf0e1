"""A number to be guessed: the model says one, and is told whether to go higher or lower."""

import random
import re

from pydantic import Field

from swift import Section
from swift.contracts import Observation


class GuessingOptions(Section):
    """Options of `guessing`."""

    numbers: int = Field(16, ge=2, description="How many numbers there are to guess from, beginning with 0")


class Guessing:
    """One game. What it begins with are the messages of the row."""

    options_model = GuessingOptions

    def __init__(self, options):
        self.numbers = options.numbers

    def reset(self, start):
        """Choose the number by the seed: all answers to one prompt play the same game."""
        self.number = random.Random(start.seed).randrange(self.numbers)

    def step(self, turn):
        """Say whether a guess is right, and else where to look."""
        found = re.search(r"\d+", turn.text)
        if found is None:
            return told("Say a number.")
        guess = int(found[0])
        if guess == self.number:
            return Observation(reward=1.0, done=True, info={"guesses": turn.number})
        return told("higher" if guess < self.number else "lower")


def told(word):
    """A turn that earns nothing, after which the model speaks again."""
    return Observation([{"role": "user", "content": word}], reward=0.0)
