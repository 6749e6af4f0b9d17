"""`python -m pdvf`."""

from pdvf.cli import entry

entry()
