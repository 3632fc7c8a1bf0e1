"""`python -m swift`: the same as the `swift` command. Workers of a run are started this way."""

from swift.cli.main import main

if __name__ == "__main__":
    main()
