"""A log density that is a sum over rows, more of them than fit into memory."""

from relbo.targets.rows.sources import AbstractRows, ArrayRows, ArrowRows, as_rows
from relbo.targets.rows.target import RowsTarget, from_rows

__all__ = ["AbstractRows", "ArrayRows", "ArrowRows", "RowsTarget", "as_rows", "from_rows"]
