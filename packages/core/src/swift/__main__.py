"""`python -m swift`: the same as the `swift` command. Workers of a run are started this way."""

import sys

try:
    from swift.cli.main import main
except ImportError:
    from swift.installation import conflicts

    damaged = [other for other in conflicts() if other.damaged]
    if not damaged:
        raise
    sys.exit(f"Error: {damaged[0].problem}\n{damaged[0].repair}")

if __name__ == "__main__":
    main()
