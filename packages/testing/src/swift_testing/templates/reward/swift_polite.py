"""Rewards completions for the words in them."""

from pydantic import Field

from swift import Section
from swift.errors import ConfigError


class PoliteOptions(Section):
    """Options of `polite`."""

    words: tuple[str, ...] = Field(("please", "thank"), description="Words to look for")


class Polite:
    """The fraction of the words in a completion. Does not apply to rows whose column `formal` is false."""

    options_model = PoliteOptions
    wants = ("formal",)

    def __init__(self, options):
        if not options.words:
            raise ConfigError("The reward 'polite' has no words.", hint="List some in `words`, or leave it out.")
        self.words = options.words

    def score(self, items):
        return [self.of(item.completion.lower()) if item.columns["formal"] else None for item in items]

    def of(self, text):
        return sum(word in text for word in self.words) / len(self.words)
