"""Every paper's rows and figures, and nothing else. `RECIPES` names all runs: `<paper>/<row>`."""

from torchcaps.papers import digits, smoke
from torchcaps.papers.sabour2017 import affine, choices, photographs, rows
from torchcaps.papers.sabour2017.figures import figures as figures_of_sabour2017
from torchcaps.recipe import Recipe, recipes_of

PAPERS = {"sabour2017": (rows, affine, photographs, choices), "digits": (digits,), "smoke": (smoke,)}
FIGURES = {"sabour2017": figures_of_sabour2017}  # by paper: what `reproduce` draws from results and checkpoints

RECIPES: dict[str, Recipe] = {
    name: recipe for paper, modules in PAPERS.items() for module in modules for name, recipe in recipes_of(paper, module).items()
}
