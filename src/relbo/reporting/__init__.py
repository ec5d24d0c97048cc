"""The report: one page of HTML about a fit, with everything in it (extra `report`)."""

from relbo.reporting.page import report

__all__ = ["report"]
