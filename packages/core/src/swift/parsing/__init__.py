"""How a command line, a file or keywords become a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.parsing.capabilities import FEATURE_SWITCHES as FEATURE_SWITCHES
    from swift.parsing.choices import choice as choice
    from swift.parsing.command_line import config_from_mapping as config_from_mapping
    from swift.parsing.command_line import parse as parse
    from swift.parsing.flag_reading import flags_of_plugins as flags_of_plugins
    from swift.parsing.flag_reading import read_flag as read_flag
    from swift.parsing.flag_reading import read_third_party_flag as read_third_party_flag
    from swift.parsing.resolve import Parsed as Parsed
    from swift.parsing.tasks import problem_type_of as problem_type_of

__getattr__ = lazy_names(__name__)
