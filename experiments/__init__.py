"""The paper's experiments, each with one command: `python -m experiments NAME`. Only relbo's public names are used."""
