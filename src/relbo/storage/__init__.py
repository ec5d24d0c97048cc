"""Files: a posterior saved and loaded, a fit checkpointed and resumed."""

from relbo.storage.files import load, save

__all__ = ["load", "save"]
