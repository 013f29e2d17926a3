"""Sentences with all gendered words swapped, in a way that can be undone.

The words are pairs, one word for one word, so that swapping twice gives the word back; each pair takes the
same article ("an actor", "an actress"). English pronouns are no such pairs: "her" is the counterpart of "his"
and of "him", and "his" that of "her" and of "hers". What stands behind the pronoun decides:

    before a noun ("her dog", "his dog")       his <-> her
    otherwise ("saw her .", "it is his .")     him <-> her,  his <-> hers

It is before a noun where the next thing is a word and not one of those that cannot follow a possessive. Where
that fails ("gave him flowers" would become "gave her flowers", and that "gave his flowers"), swapping again
would not give the sentence back, and :func:`swapped` gives None: such a sentence is left out, not guessed.
"""

from __future__ import annotations

import re

_PAIRS = """
man/woman men/women boy/girl boys/girls guy/gal guys/gals gentleman/lady gentlemen/ladies male/female
males/females lad/lass lads/lasses sir/madam mr/mrs schoolboy/schoolgirl schoolboys/schoolgirls
father/mother fathers/mothers dad/mom dads/moms daddy/mommy daddies/mommies papa/mama son/daughter
sons/daughters brother/sister brothers/sisters husband/wife husbands/wives uncle/aunt uncles/aunts
nephew/niece nephews/nieces grandfather/grandmother grandfathers/grandmothers grandpa/grandma
grandson/granddaughter grandsons/granddaughters stepfather/stepmother stepson/stepdaughter
godfather/godmother groom/bride grooms/brides boyfriend/girlfriend boyfriends/girlfriends widower/widow
widowers/widows fatherhood/motherhood brotherhood/sisterhood
actor/actress actors/actresses waiter/waitress waiters/waitresses host/hostess hosts/hostesses
steward/stewardess stewards/stewardesses policeman/policewoman policemen/policewomen fireman/firewoman
firemen/firewomen businessman/businesswoman businessmen/businesswomen salesman/saleswoman
salesmen/saleswomen fisherman/fisherwoman fishermen/fisherwomen cameraman/camerawoman sportsman/sportswoman
sportsmen/sportswomen horseman/horsewoman spokesman/spokeswoman chairman/chairwoman
congressman/congresswoman landlord/landlady cowboy/cowgirl cowboys/cowgirls king/queen kings/queens
prince/princess princes/princesses duke/duchess hero/heroine heroes/heroines heir/heiress monk/nun
monks/nuns wizard/witch
he/she himself/herself manly/womanly boyish/girlish masculine/feminine
"""
PAIRS = [(first, second) for first, second in (pair.split("/") for pair in re.findall(r"\S+", _PAIRS))]
WORDS = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
OTHERWISE = {"him": "her", "her": "him", "his": "hers", "hers": "his"}
BEFORE_NOUN = {**OTHERWISE, "her": "his", "his": "her"}  # "him" cannot be undone here, and is noticed
# No gendered word may be here without its counterpart: a swap must not change what follows a pronoun.
_NEVER = """
a about above across after again against all alone along also although am among an and another any are
around as at away be because been before behind being below beneath beside between both but by can could did
do does down during each either else every everything for from had has have he here how i if in into is it
its just may might must near not now of off on onto or out over really she should since so some something
somewhere than that the their them then there these they this those through to together too toward towards
under until up upon very was we were what when where whether which while who why will with within without
would you your
"""
NEVER_AFTER_POSSESSIVE = frozenset(re.findall(r"\S+", _NEVER))
_WORD = re.compile(r"[A-Za-z]+")
_NEXT = re.compile(r"\s+([A-Za-z]+)")


def swapped(sentence: str) -> str | None:
    """The sentence with its gendered words swapped, or None where swapping again would not give it back.

    A word keeps its case: lower, Capitalised or UPPER. A sentence without such words is its own swap.

    >>> swapped("Her brother saw him with his wife .")
    'His sister saw her with her husband .'
    >>> swapped("She gave him flowers .") is None
    True
    """
    other = _swap(sentence)
    return other if _swap(other) == sentence else None


def is_gendered(sentence: str) -> bool:
    """Whether there is anything to swap.

    >>> is_gendered("A woman sleeps ."), is_gendered("A dog sleeps .")
    (True, False)
    """
    return any(word.lower() in WORDS or word.lower() in OTHERWISE for word in _WORD.findall(sentence))


def _swap(sentence: str) -> str:
    def other(found: re.Match[str]) -> str:
        word = found.group()
        words = WORDS
        if word.lower() in OTHERWISE:
            after = _NEXT.match(sentence, found.end())
            noun = after is not None and after.group(1).lower() not in NEVER_AFTER_POSSESSIVE
            words = BEFORE_NOUN if noun else OTHERWISE
        for case in (str.lower, str.capitalize, str.upper):
            if case(word) == word:
                return case(words.get(word.lower(), word))
        return word

    return _WORD.sub(other, sentence)
