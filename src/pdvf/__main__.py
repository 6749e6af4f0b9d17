"""`python -m pdvf`."""

from pdvf.processes import entry

entry()
