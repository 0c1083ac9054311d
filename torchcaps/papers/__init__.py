"""Every paper's rows and figures, and nothing else. `RECIPES` names all runs: `<paper>/<row>`."""

from torchcaps.papers import digits, smoke
from torchcaps.papers.sabour2017 import rows as sabour2017
from torchcaps.recipe import Recipe, recipes_of

PAPERS = {"sabour2017": sabour2017, "digits": digits, "smoke": smoke}

RECIPES: dict[str, Recipe] = {name: recipe for paper, module in PAPERS.items() for name, recipe in recipes_of(paper, module).items()}
