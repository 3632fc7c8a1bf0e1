"""A game: the model names a number and reads whether to go higher or lower."""

import random
import re

from pydantic import Field

from swift import Section
from swift.contracts import Observation


class GuessingOptions(Section):
    """Options of `guessing`."""

    numbers: int = Field(16, ge=2, description="The number to guess is below this one")


class Guessing:
    """One episode. The conversation starts with the messages of the row."""

    options_model = GuessingOptions

    def __init__(self, options):
        self.numbers = options.numbers

    def reset(self, start):
        """Choose the number from the seed: all completions of a prompt play the same game."""
        self.number = random.Random(start.seed).randrange(self.numbers)

    def step(self, turn):
        """End the episode if the guess is right; otherwise reply with a hint."""
        found = re.search(r"\d+", turn.text)
        if found is None:
            return reply("Say a number.")
        guess = int(found[0])
        if guess == self.number:
            return Observation(reward=1.0, done=True, info={"guesses": turn.number})
        return reply("higher" if guess < self.number else "lower")


def reply(content):
    """Return a turn without a reward, after which the model continues."""
    return Observation([{"role": "user", "content": content}], reward=0.0)
