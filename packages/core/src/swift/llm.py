"""Module that only a third-party program has; importing it raises an error that names what to write instead."""

from swift.plugins.vocabularies import advice, programs_missing

raise ImportError(advice(__name__) or f"There is no {__name__}. {programs_missing()}".rstrip())
