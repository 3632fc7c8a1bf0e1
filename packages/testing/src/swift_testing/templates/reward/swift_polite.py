"""Rewards completions for what they contain."""

from pydantic import Field

from swift import Section
from swift.errors import ConfigError


class PoliteOptions(Section):
    """Options of `polite`."""

    phrases: tuple[str, ...] = Field(("please", "thank"), description="What to look for")


class Polite:
    """The fraction of the phrases in a completion. Does not apply to rows whose column `formal` is false."""

    options_model = PoliteOptions
    wants = ("formal",)

    def __init__(self, options):
        if not options.phrases:
            raise ConfigError("The reward 'polite' has no phrases.", hint="List some in `phrases`, or leave it out.")
        self.phrases = options.phrases

    def score(self, items):
        return [self.of(item.completion.lower()) if item.columns["formal"] else None for item in items]

    def of(self, text):
        return sum(each in text for each in self.phrases) / len(self.phrases)
