"""Verbs whose command line belongs to the part of swift that does their work."""

from __future__ import annotations


def infer(verb: str, args: list[str]) -> int:
    """`swift infer | chat | eval`."""
    from swift.cli.infer import run

    return run(verb, args)


def demo(_verb: str, args: list[str]) -> int:
    """`swift demo`."""
    from swift.cli.demo import run

    return run(args)


def doctor(_verb: str, args: list[str]) -> int:
    """`swift doctor`."""
    from swift.cli.doctor import run

    return run(args)
