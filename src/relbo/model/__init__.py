"""The model as a fit sees it: in whitened coordinates, through one door, within the memory allowed."""
