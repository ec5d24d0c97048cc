"""`python -m experiments.page`: README.md from what is said about the experiments and from their results."""

import pathlib

from experiments.__main__ import EXPERIMENTS

HERE = pathlib.Path(__file__).parent


def page(folder: pathlib.Path = HERE) -> str:
    """The whole page. An experiment without results is named as such."""
    parts = [(folder / "about.md").read_text()]
    for name in EXPERIMENTS:
        path = folder / "results" / f"{name}.md"
        if not path.is_file():
            parts.append(f"## {name}\n\nNo results yet: `python -m experiments {name}`.\n")
            continue
        title, _, rest = path.read_text().removeprefix("# ").partition("\n")
        parts.append(f"## {name}: {title}\n\n![{title}](results/{name}.png)\n{rest}")
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    (HERE / "README.md").write_text(page())
