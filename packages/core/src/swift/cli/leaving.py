"""Commands that move to packages of their own."""

from __future__ import annotations

from typing import Any

from swift.cli import convert, demo, eval, infer, serve


class Infer:
    """Implements `swift.contracts.Command`."""

    group = "Use the result"
    summary = "Generate responses to prompts from a file or the keyboard"
    options_model = infer.InferOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return infer.run("infer", args)


class Chat:
    """Implements `swift.contracts.Command`."""

    group = "Use the result"
    summary = "Chat with a model"
    options_model = infer.ChatOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return infer.run_chat("chat", args)


class Serve:
    """Implements `swift.contracts.Command`."""

    group = "Use the result"
    summary = "Serve a model to OpenAI clients, with its adapters"
    options_model = serve.ServeCommandOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return serve.run("serve", args)


class Deploy:
    """Implements `swift.contracts.Command`."""

    group = "Use the result"
    summary = "The same as serve"
    options_model = serve.ServeCommandOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return serve.run("deploy", args)


class Eval:
    """Implements `swift.contracts.Command`."""

    group = "Use the result"
    summary = "Evaluate a model on a labeled data set"
    options_model = eval.EvalOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return eval.run("eval", args)


class Convert:
    """Implements `swift.contracts.Command`."""

    group = "Use the result"
    summary = "Convert checkpoints from and to third-party formats"
    options_model = convert.ConvertOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return convert.run("convert", args)


class Demo:
    """Implements `swift.contracts.Command`."""

    group = "Inspect"
    summary = "Train, export and evaluate a tiny model in minutes"
    options_model: Any = demo.DemoOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return demo.run("demo", args)
