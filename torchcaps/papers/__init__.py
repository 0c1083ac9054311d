"""Every paper's rows and figures, and nothing else. `RECIPES` names all runs: `<paper>/<row>`."""

from torchcaps.papers import digits, smoke
from torchcaps.papers.hauser2019 import choices as choices_of_hauser2019
from torchcaps.papers.hauser2019 import rows as rows_of_hauser2019
from torchcaps.papers.hauser2019.figures import figures as figures_of_hauser2019
from torchcaps.papers.heinsen2019 import choices as choices_of_heinsen2019
from torchcaps.papers.heinsen2019 import other_training, sentence_choices, sentences
from torchcaps.papers.heinsen2019 import rows as rows_of_heinsen2019
from torchcaps.papers.heinsen2019 import viewpoints as viewpoints_of_heinsen2019
from torchcaps.papers.heinsen2019.figures import figures as figures_of_heinsen2019
from torchcaps.papers.jeong2019 import affine as affine_of_jeong2019
from torchcaps.papers.jeong2019 import affine_choices as affine_choices_of_jeong2019
from torchcaps.papers.jeong2019 import choices as choices_of_jeong2019
from torchcaps.papers.jeong2019 import claims as claims_of_jeong2019
from torchcaps.papers.jeong2019 import rows as rows_of_jeong2019
from torchcaps.papers.jeong2019.figures import figures as figures_of_jeong2019
from torchcaps.papers.rawlinson2018 import attacks as attacks_of_rawlinson2018
from torchcaps.papers.rawlinson2018 import depth as depth_of_rawlinson2018
from torchcaps.papers.rawlinson2018 import ideas as ideas_of_rawlinson2018
from torchcaps.papers.rawlinson2018 import readings as readings_of_rawlinson2018
from torchcaps.papers.rawlinson2018 import released as released_of_rawlinson2018
from torchcaps.papers.rawlinson2018 import rows as rows_of_rawlinson2018
from torchcaps.papers.rawlinson2018.figures import figures as figures_of_rawlinson2018
from torchcaps.papers.sabour2017 import affine, affine_choices, choices, photograph_choices, photographs, rows
from torchcaps.papers.sabour2017.figures import figures as figures_of_sabour2017
from torchcaps.train.recipe import Recipe, recipes_of

PAPERS = {
    "sabour2017": (rows, affine, photographs, choices, affine_choices, photograph_choices),
    "heinsen2019": (rows_of_heinsen2019, other_training, viewpoints_of_heinsen2019, sentences, choices_of_heinsen2019, sentence_choices),
    "hauser2019": (rows_of_hauser2019, choices_of_hauser2019),
    "jeong2019": (rows_of_jeong2019, affine_of_jeong2019, claims_of_jeong2019, choices_of_jeong2019, affine_choices_of_jeong2019),
    "rawlinson2018": (
        rows_of_rawlinson2018,
        readings_of_rawlinson2018,
        released_of_rawlinson2018,
        ideas_of_rawlinson2018,
        depth_of_rawlinson2018,
        attacks_of_rawlinson2018,
    ),
    "digits": (digits,),
    "smoke": (smoke,),
}
FIGURES = {
    "sabour2017": figures_of_sabour2017,
    "heinsen2019": figures_of_heinsen2019,
    "hauser2019": figures_of_hauser2019,
    "jeong2019": figures_of_jeong2019,
    "rawlinson2018": figures_of_rawlinson2018,
}  # by paper: what `reproduce` draws from results and checkpoints

RECIPES: dict[str, Recipe] = {
    name: recipe for paper, modules in PAPERS.items() for module in modules for name, recipe in recipes_of(paper, module).items()
}
