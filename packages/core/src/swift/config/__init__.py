"""Configuration of a run: its sections, and how a command line, a file or keywords become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.config.capabilities import FEATURE_SWITCHES as FEATURE_SWITCHES
    from swift.config.compat.environment import IGNORED_MEDIA_VARIABLES as IGNORED_MEDIA_VARIABLES
    from swift.config.compat.environment import MEDIA_VARIABLES as MEDIA_VARIABLES
    from swift.config.compat.environment import VARIABLES_OF_OBJECTIVE as VARIABLES_OF_OBJECTIVE
    from swift.config.compat.unsupported import ENGINE_OPTIONS as ENGINE_OPTIONS
    from swift.config.fields import core_fields as core_fields
    from swift.config.files import read_yaml as read_yaml
    from swift.config.flag_reading import flags_of_rewards as flags_of_rewards
    from swift.config.flag_reading import read_flag as read_flag
    from swift.config.flag_reading import read_third_party_flag as read_third_party_flag
    from swift.config.tasks import problem_type_of as problem_type_of
    from swift.config.values import names_in as names_in

__getattr__ = lazy_names(
    __name__,
    {
        "capabilities": "FEATURE_SWITCHES",
        "compat.environment": "IGNORED_MEDIA_VARIABLES MEDIA_VARIABLES VARIABLES_OF_OBJECTIVE",
        "compat.unsupported": "ENGINE_OPTIONS",
        "fields": "core_fields",
        "files": "read_yaml",
        "flag_reading": "flags_of_rewards read_flag read_third_party_flag",
        "tasks": "problem_type_of",
        "values": "names_in",
    },
)
