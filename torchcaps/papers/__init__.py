"""Every paper's rows and figures, and nothing else. `RECIPES` names all of them: `<paper>/<row>`."""

from torchcaps.papers import (
    depth,
    digits,
    hauser2019,
    heinsen2019,
    hinton2018,
    jeong2019,
    mazzia2021,
    rawlinson2018,
    records,
    routings,
    sabour2017,
    smoke,
    tsai2020,
)
from torchcaps.results.claims import Recipe, recipes_of

# recipe modules of each paper
PAPERS = {
    "sabour2017": sabour2017.ROWS,
    "hinton2018": hinton2018.ROWS,
    "heinsen2019": heinsen2019.ROWS,
    "hauser2019": hauser2019.ROWS,
    "jeong2019": jeong2019.ROWS,
    "rawlinson2018": rawlinson2018.ROWS,
    "mazzia2021": mazzia2021.ROWS,
    "tsai2020": tsai2020.ROWS,
    "depth": depth.ROWS,
    "routings": routings.ROWS,
    "records": records.ROWS,
    "digits": (digits,),
    "smoke": (smoke,),
}
# functions that draw the figures of each paper from results and checkpoints
FIGURES = {
    "depth": depth.figures,
    "routings": routings.figures,
    "sabour2017": sabour2017.figures,
    "heinsen2019": heinsen2019.figures,
    "hauser2019": hauser2019.figures,
    "jeong2019": jeong2019.figures,
    "rawlinson2018": rawlinson2018.figures,
}

RECIPES: dict[str, Recipe] = {
    name: recipe
    for paper, modules in PAPERS.items()
    for module in modules
    for name, recipe in recipes_of(paper, module).items()
}
