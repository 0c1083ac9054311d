"""Rows and seeds of one command embed each part of the treebank once: all phrases are 34 GB, and take a GPU's minute to
make.
"""

import gc
import sys
from dataclasses import replace
from weakref import WeakSet

import pytest

from torchcaps import cli
from torchcaps.cli.order import in_order
from torchcaps.data.batches import embeddings
from torchcaps.data.sets import sst
from torchcaps.data.sources import encoders
from torchcaps.papers import RECIPES
from torchcaps.results.claims import Recipe
from torchcaps.results.store import read_result
from torchcaps.train.vary import vary

transformers = pytest.importorskip("transformers", reason="pip install 'torchcaps[sentences]'")
from transformers_tiny import LIMIT, WORDS, tokenizer  # noqa: E402

TREES = {
    "train.txt": "(3 (2 a) (4 film))\n(1 (2 the) (0 dull))\n",
    "dev.txt": "(0 (1 dull) (2 film))\n(4 (4 great) (2 film))\n(2 film)\n",
    "test.txt": "(4 (4 great) (2 film))\n(1 (2 not) (4 great))\n(0 dull)\n(2 the)\n",
}
SIZES = [
    4,
    2,
    3,
    6,
    3,
    4,
]  # phrases to train on, validation and test sentences: without the neutral ones, and with them
ASKED = (
    "sst5",
    "sst2",
    "sst5-no-depth",
    "sst5-linear",
    "sst2-linear",
    "sst2-no-depth",
)  # not in the order in which they are best run


def small(recipe: Recipe) -> Recipe:
    """The row with the small encoder and two steps of batches of two."""
    run = recipe.make()
    stage = replace(run.stages[0], steps=2, batch=2)
    args = {"d_features": 4, "n_parts": 3} if run.model == "em-sentences" else {"hidden": (3,)}
    run = replace(run, data=run.data.replace("mpnet", "minilm"), model_args=run.model_args | args, stages=(stage,))
    return Recipe(recipe.name, lambda: run, recipe.claim)


@pytest.fixture
def treebank(tmp_path, monkeypatch):
    """A treebank of a few trees, and a transformer at random that has the layers and the width of the small encoder."""
    for name, text in TREES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sst, "N_TREES", {split: TREES[name].count("\n") for split, name in sst.FILES.items()})
    encoder = encoders.ENCODERS["minilm"]
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=encoder.width,
        num_hidden_layers=encoder.n_layers - 1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=LIMIT,
    )
    folder = tmp_path / "encoders" / encoder.name
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer("encoder").save_pretrained(folder)
    monkeypatch.setattr(cli.reproduction.datasets, "status", lambda name, root: "here")
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_rows_and_seeds_of_one_command_embed_each_part_once(treebank, monkeypatch):
    for name in ASKED:
        monkeypatch.setitem(RECIPES, f"heinsen2019/{name}", small(RECIPES[f"heinsen2019/{name}"]))
    made, stores, loaded, make = [], WeakSet(), encoders._loaded.cache_info().misses, embeddings._make

    def counted(encoder, tokens, *rest):
        store = make(encoder, tokens, *rest)
        made.append(len(tokens))
        stores.add(store)
        return store

    monkeypatch.setattr(embeddings, "_make", counted)
    rows = [word for name in ASKED for word in ("--row", name)]
    words = [
        "reproduce",
        "heinsen2019",
        *rows,
        "--seeds",
        "0,1",
        "--no-table",
        "--device",
        "cpu",
        "--data",
        str(treebank),
    ]
    monkeypatch.setattr(sys, "argv", ["torchcaps", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    results = [
        read_result(treebank / "results" / "heinsen2019" / name / f"{seed}.json") for name in ASKED for seed in (0, 1)
    ]
    assert len(results) == 12 and all(result["steps"] == 2 for result in results)
    assert sorted(made) == sorted(SIZES)
    assert encoders._loaded.cache_info().misses - loaded == 1
    gc.collect()
    assert sorted(len(store.lengths) for store in stores) == [3, 4, 6]  # no finished run holds on to the others


def test_rows_come_the_cheapest_first_and_those_of_the_same_sentences_together():
    plain = [
        "heinsen2019/sst2",
        "sabour2017/mnist-r3-recon",
        "heinsen2019/sst5",
        "heinsen2019/smallnorb",
        "rawlinson2018/pixels-wide-svm-a",
    ]
    assert [recipe.name for recipe in in_order([RECIPES[name] for name in reversed(plain)])] == plain
    # as costly as a row of five labels, and behind MNIST but for its sentences
    long = Recipe("heinsen2019/sst2-long", lambda: vary(RECIPES["heinsen2019/sst2"].make(), {"epochs": 6}), None)
    together = [RECIPES[plain[0]], long, *(RECIPES[name] for name in plain[1:3])]
    together += [RECIPES["heinsen2019/sst5-no-depth"], *(RECIPES[name] for name in plain[3:])]
    assert [recipe.name for recipe in in_order(together)] == [recipe.name for recipe in together]
