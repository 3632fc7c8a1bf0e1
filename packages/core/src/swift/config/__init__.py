"""Configuration of a run: its sections, and how a command line, a file or keywords become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.config.draft import Assignment as Assignment
    from swift.config.draft import Draft as Draft
    from swift.config.draft import whole_number as whole_number
    from swift.config.fields import core_fields as core_fields
    from swift.config.files import read_yaml as read_yaml
    from swift.config.flags import Arity as Arity
    from swift.config.flags import TranslatedFlags as TranslatedFlags
    from swift.config.meanings import Default as Default
    from swift.config.meanings import Meaning as Meaning
    from swift.config.meanings import NotNeeded as NotNeeded
    from swift.config.meanings import Refused as Refused
    from swift.config.meanings import off as off
    from swift.config.settings import Fallback as Fallback
    from swift.config.settings import Note as Note
    from swift.config.settings import Request as Request
    from swift.config.settings import Set as Set
    from swift.config.settings import Settings as Settings
    from swift.config.settings import Translation as Translation
    from swift.config.settings import renamed as renamed
    from swift.config.settings import request as request
    from swift.config.settings import sets as sets
    from swift.config.settings import switch as switch
    from swift.config.settings import unknown_value as unknown_value
    from swift.config.values import as_switch as as_switch
    from swift.config.values import literal as literal
    from swift.config.values import names_in as names_in
    from swift.config.values import quoted as quoted

__getattr__ = lazy_names(__name__)
