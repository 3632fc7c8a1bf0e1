"""The dashboard of swift: `swift ui`, and `swift watch RUN` in a terminal."""

__version__ = "0.1.0"
