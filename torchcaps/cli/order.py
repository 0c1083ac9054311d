"""In which order the rows of one command are made."""

from torchcaps.data import info, spec
from torchcaps.results.claims import Recipe


def in_order(recipes: list[Recipe]) -> list[Recipe]:
    """The cheapest first; but those of the same sentences one after the other, since only the last embeddings are kept."""
    runs = {recipe.name: recipe.make() for recipe in recipes}
    costs = {name: run.cost() for name, run in runs.items()}
    sets = {name: _sentences(run.data) for name, run in runs.items()}

    def place(recipe: Recipe) -> tuple[float, str, float]:
        mine = sets[recipe.name]
        with_it = [name for name in runs if mine and sets[name] == mine]
        return min(costs[name] for name in (recipe.name, *with_it)), mine, costs[recipe.name]

    return sorted(recipes, key=place)


def _sentences(data: str) -> str:
    """The training sentences, if it holds any; a set to choose by has the training part of the other."""
    return str(spec(data).same_training) if info(data).kind == "sentences" else ""
