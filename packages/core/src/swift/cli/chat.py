"""`swift chat MODEL`: a conversation with a model on the terminal."""

from __future__ import annotations

from swift.cli.options import run_command
from swift.infer.asking import check_model, quiet_libraries, talk
from swift.infer.options import ModelOptions, SamplingOptions


class ChatOptions(SamplingOptions, ModelOptions):
    """The model remembers what was said. /help shows what can be typed besides; /exit or Ctrl-D leaves."""

    examples = ("swift chat output/my-model/v0-20260101-120000", "swift chat --engine http://127.0.0.1:8000")


def run(command: str, args: list[str]) -> int:
    """Run the command; returns the exit code."""
    return run_command(command, args, ChatOptions, chat)


def chat(options: ChatOptions) -> int:
    """Talk to a model until the user leaves."""
    check_model("chat", options)
    quiet_libraries(options)
    return talk(options, options.sampling)
