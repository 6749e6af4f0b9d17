"""Reports of a run: statistics, figures and one HTML page. They read what a run left and train nothing."""

from pdvf.reports.report import write_report

__all__ = ["write_report"]
