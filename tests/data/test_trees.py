"""Labelled trees in brackets."""

import pytest

from torchcaps.data import DataError
from torchcaps.data.sources.trees import Phrase, negative_or_positive, read_tree, read_trees, roots, unique_phrases

LINE = "(3 (2 It) (4 (2 's) (4 (3 a) (4 (3 lovely) (2 film)))))"


def test_the_sentence_comes_first_and_then_its_parts_as_their_brackets_open():
    assert read_tree(LINE) == (
        Phrase("It 's a lovely film", 3),
        Phrase("It", 2),
        Phrase("'s a lovely film", 4),
        Phrase("'s", 2),
        Phrase("a lovely film", 4),
        Phrase("a", 3),
        Phrase("lovely film", 4),
        Phrase("lovely", 3),
        Phrase("film", 2),
    )


def test_brackets_slashes_and_spaces_within_a_sentence_come_back():
    tree = read_tree("(2 (2 -LRB-) (2 (2 and\\/or) (2 (2 8\xa01\\/2) (2 -RRB-))))")
    assert tree[0].text == "( and/or 8 1/2 )"
    assert [phrase.text for phrase in tree[1:] if " " not in phrase.text] == ["(", "and/or", ")"]


def test_a_phrase_counts_once_and_keeps_its_first_label():
    trees = read_trees("(3 (2 good) (4 film))\n(1 (0 film) (2 good))\n", "x")
    assert roots(trees) == [Phrase("good film", 3), Phrase("film good", 1)]
    assert unique_phrases(trees) == [
        Phrase("good film", 3),
        Phrase("good", 2),
        Phrase("film", 4),
        Phrase("film good", 1),
    ]


def test_with_two_labels_what_is_neutral_is_left_out():
    phrases = [Phrase(str(label), label) for label in range(5)]
    assert negative_or_positive(phrases) == [Phrase("0", 0), Phrase("1", 0), Phrase("3", 1), Phrase("4", 1)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("(3 (2 It) (4 film)", "1 bracket is never closed"),
        ("(3 (2 It (4 film", "stands|never closed|beside"),
        ("(3 (2 It) (4 film)))", r"'\)' stands behind the tree"),
        (") (3 film)", "a bracket is closed that was never opened"),
        ("(3 film) (2 too)", r"'\(' stands behind the tree"),
        ("(7 film)", "a label from 0 to 4, not with '7'"),
        ("(film)", "a label from 0 to 4, not with 'film'"),
        ("(", "not with 'nothing'"),
        ("(3 )", "holds no words: the sentence, or a part of it, is empty"),
        ("(3 (2 It) (2 ))", "holds no words"),
        ("(3 It film)", "the word 'film' stands beside other parts"),
        ("(3 (2 It) film)", "the word 'film' stands beside other parts"),
        ("film", "the word 'film' stands outside of all brackets"),
        ("", "the line is empty"),
        ("(2 " * 20_000, "20000 brackets are never closed"),
    ],
)
def test_what_is_broken_is_named_with_its_line(line, why):
    with pytest.raises(DataError, match=rf"dev\.txt, line 2: .*({why}).*wanted one tree like"):
        read_trees(f"{LINE}\n{line}\n{LINE}\n", "dev.txt")
