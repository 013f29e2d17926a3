"""Swapping: what is swapped, that it can be undone, and that this holds for every sentence there is."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taufree.experiments.language.gender_swap import (
    BEFORE_NOUN,
    NEVER_AFTER_POSSESSIVE,
    OTHERWISE,
    PAIRS,
    WORDS,
    is_gendered,
    swapped,
)
from taufree.experiments.language.nli_pairs import read_entailments, swap_pairs
from tests.support.paths import DATA, needs_data

WORD = st.sampled_from([*sorted(WORDS), *OTHERWISE, "dog", "with", "the", ".", ",", "red", "'s", "and"])
CASED = st.builds(
    lambda word, case: case(word), WORD, st.sampled_from([str.lower, str.capitalize, str.upper, str.swapcase])
)


def test_each_word_has_one_counterpart_that_takes_the_same_article():
    counts = Counter(word for pair in PAIRS for word in pair)
    assert set(counts.values()) == {1}
    assert not counts.keys() & OTHERWISE.keys()
    silent = {"heir", "heiress"}
    for first, second in PAIRS:
        assert (first[0] in "aeou" or first in silent) == (second[0] in "aeou" or second in silent)


def test_what_follows_a_pronoun_is_judged_alike_before_and_after():
    gendered = NEVER_AFTER_POSSESSIVE & (WORDS.keys() | BEFORE_NOUN.keys())
    assert gendered == {WORDS[word] for word in gendered} == {"he", "she"}


@pytest.mark.parametrize(
    ("sentence", "other"),
    [
        ("A man walks his dog .", "A woman walks her dog ."),
        ("Two women look at him .", "Two men look at her ."),
        ("The red one is his .", "The red one is hers ."),
        ("The MAN and His son", "The WOMAN and Her daughter"),
        ("She hurt herself.", "He hurt himself."),
        ("An actor's wife", "An actress's husband"),
        ("The human mandate of mankind", "The human mandate of mankind"),
        ("Herman met Shelley", "Herman met Shelley"),
    ],
)
def test_known_sentences_both_ways(sentence, other):
    assert swapped(sentence) == other
    assert swapped(other) == sentence


@pytest.mark.parametrize("sentence", ["She gave him flowers .", "Hers shine .", "a dog next to him barks"])
def test_what_cannot_be_undone_is_refused(sentence):
    assert is_gendered(sentence)
    assert swapped(sentence) is None


@settings(max_examples=300, deadline=None)
@given(st.lists(CASED, max_size=8).map(" ".join))
def test_swapping_twice_gives_the_sentence_back_or_it_is_refused(sentence):
    other = swapped(sentence)
    if other is not None:
        assert swapped(other) == sentence
        assert is_gendered(other) == is_gendered(sentence)


@needs_data("snli")
def test_every_pair_of_snli_can_be_swapped_back_but_a_few():
    pairs = swap_pairs(read_entailments(DATA))
    assert len(pairs.quadruples) > 4000
    assert pairs.left_out < len(pairs.quadruples) / 100
    for premise, hypothesis, other_premise, other_hypothesis in pairs.quadruples:
        assert (swapped(other_premise), swapped(other_hypothesis)) == (premise, hypothesis)
        assert (premise, hypothesis) != (other_premise, other_hypothesis)
