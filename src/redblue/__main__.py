"""`python -m redblue`: the command line."""

from redblue.cli.main import main

if __name__ == "__main__":
    main()
