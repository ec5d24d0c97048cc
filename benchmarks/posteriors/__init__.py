"""The models of the peer benchmark, in the order of its page, and what is known of their posteriors."""

import json
from pathlib import Path

from posteriors.anchors import ANCHORS
from posteriors.base import Model, Reference
from posteriors.discrete import DISCRETE
from posteriors.hierarchical import HIERARCHICAL
from posteriors.processes import PROCESSES
from posteriors.regressions import REGRESSIONS

REFERENCES = Path(__file__).parent / "references"

_ALL = (*ANCHORS, *HIERARCHICAL, *PROCESSES, *DISCRETE, *REGRESSIONS)
MODELS: dict[str, Model] = {model.name: model for model in _ALL}


def load_reference(name: str) -> Reference | None:
    """What `reference.py` found, or None if it has not been run for this model."""
    path = REFERENCES / f"{name}.json"
    return Reference(**json.loads(path.read_text())) if path.is_file() else None


__all__ = ["MODELS", "Model", "Reference", "load_reference"]
