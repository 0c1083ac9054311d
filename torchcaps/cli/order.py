"""In which order the rows of one command are made."""

from torchcaps.data import info
from torchcaps.probes.kinds import Reading
from torchcaps.train.recipe import Recipe, Run


def in_order(recipes: list[Recipe]) -> list[Recipe]:
    """The cheapest first; but those of the same sentences one after the other, since only the last embeddings are kept."""
    runs = {recipe.name: recipe.make() for recipe in recipes}
    costs, sets = ({name: of(run) for name, run in runs.items()} for of in (_cost, _sentences))

    def place(recipe: Recipe) -> tuple[float, str, float]:
        mine = sets[recipe.name]
        with_it = [name for name in runs if mine and sets[name] == mine]
        return min(costs[name] for name in (recipe.name, *with_it)), mine, costs[recipe.name]

    return sorted(recipes, key=place)


def _cost(run: Run) -> float:
    """Planned images times their pixels. What reads another row's network comes behind all networks."""
    if isinstance(run, Reading):
        return float("inf")
    about = info(run.data)
    images = sum(stage.batch * stage.steps if stage.steps else stage.epochs * about.n_train for stage in run.stages)
    return images * about.shape[1] * about.shape[2]


def _sentences(run: Run) -> str:
    """What it trains on, if those are sentences; a set to choose by has the training part of the other."""
    is_sentences = not isinstance(run, Reading) and info(run.data).kind == "sentences"
    return run.data.removesuffix("-dev") if is_sentences else ""
