"""Entry point of `python -m torchcaps`."""

from torchcaps.cli import main

main()
