"""Order of the rows that one command runs."""

from torchcaps.data import info, spec
from torchcaps.results.claims import Recipe


def in_order(recipes: list[Recipe]) -> list[Recipe]:
    """Sort recipes by cost; recipes on the same sentences stay together, since only the last embeddings are cached."""
    runs = {recipe.name: recipe.make() for recipe in recipes}
    costs = {name: run.cost() for name, run in runs.items()}
    sets = {name: _sentences(run.data) for name, run in runs.items()}

    def place(recipe: Recipe) -> tuple[float, str, float]:
        mine = sets[recipe.name]
        with_it = [name for name in runs if mine and sets[name] == mine]
        return min(costs[name] for name in (recipe.name, *with_it)), mine, costs[recipe.name]

    return sorted(recipes, key=place)


def _sentences(data: str) -> str:
    """Name the training sentences of a data set, or return ""; a validation set shares those of its parent."""
    return str(spec(data).same_training) if info(data).kind == "sentences" else ""
