"""The map behind which boosting works: a race of normals, and a flow where that leaves much over."""
