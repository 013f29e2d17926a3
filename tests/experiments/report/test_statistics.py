"""Statistics of a sweep, against values worked out by hand."""

import pytest

from taufree.experiments.report.statistics import (
    against_best_temperature,
    best_temperature,
    difference,
    spreads,
    values,
)


def lines(**figures):
    """Lines with one value of knn per seed and its negative; ``t0_5`` is the link 0.5."""
    return [
        {
            "link": link.removeprefix("t").replace("_", "."),
            "seed": seed,
            "metrics": {"knn": value, "minus": -value},
        }
        for link, of_link in figures.items()
        for seed, value in enumerate(of_link)
        if value is not None
    ]


SWEEP = lines(t0_5=[80.0, 82.0, 84.0], free=[83.0, 84.0, 88.0], t0_1=[70.0, 71.0, 72.0])


def test_the_table_has_links_in_order():
    table = values(SWEEP)
    assert list(dict.fromkeys(table.index.get_level_values("link"))) == ["free", "0.1", "0.5"]
    assert table.loc[("0.5", 2), "knn"] == 84.0


def test_mean_and_sample_standard_deviation():
    found = spreads(SWEEP)
    assert list(found) == ["free", "0.1", "0.5"]
    assert found["0.5"]["knn"].mean == 82.0
    assert found["0.5"]["knn"].std == pytest.approx(2.0)
    assert found["free"]["knn"].std == pytest.approx(7.0**0.5)  # (2² + 1² + 3²) / 2
    assert found["free"]["knn"].seeds == 3
    assert str(found["0.5"]["minus"]) == "-82.00 ± 2.00"


def test_the_best_temperature_has_the_highest_mean_of_that_metric():
    assert best_temperature(SWEEP, "knn") == "0.5"
    assert best_temperature(SWEEP, "minus") == "0.1"
    assert best_temperature(lines(free=[1.0]), "knn") is None


def test_the_paired_difference_and_its_interval():
    gap = difference(SWEEP, "knn", "free", "0.5")
    assert gap.per_seed == {0: 3.0, 1: 2.0, 2: 4.0}
    assert gap.mean == pytest.approx(3.0)
    # std 1, n 3, t(0.975, 2) = 4.302653
    assert gap.interval == pytest.approx((3 - 4.302653 / 3**0.5, 3 + 4.302653 / 3**0.5), abs=1e-5)
    assert (
        str(gap) == "knn: free minus tau 0.5 is +3.00 (95 % interval +0.52 to +5.48, 3 seeds): free is ahead."
    )


def test_within_noise_and_behind_are_said_plainly():
    noisy = lines(free=[1.0, 2.0, 3.0], t0_5=[1.5, 1.0, 3.5])
    assert str(difference(noisy, "knn", "free", "0.5")).endswith("3 seeds): within noise.")
    behind = lines(free=[1.0, 2.0, 3.0], t0_5=[3.0, 4.1, 5.0])
    assert str(difference(behind, "knn", "free", "0.5")).endswith("3 seeds): free is behind.")


def test_only_seeds_that_both_have_are_compared():
    gap = difference(lines(free=[1.0, 2.0, None, 4.0], t0_5=[0.0, None, 9.0, 2.0]), "knn", "free", "0.5")
    assert gap.per_seed == {0: 1.0, 3: 2.0}
    assert difference(lines(free=[None, 1.0], t0_5=[1.0]), "knn", "free", "0.5") is None
    assert difference(lines(free=[1.0]), "knn", "free", "0.5") is None


def test_one_seed_has_no_spread_and_no_interval():
    one = lines(free=[2.0], t0_5=[1.0])
    assert spreads(one)["free"]["knn"].std is None
    gap = difference(one, "knn", "free", "0.5")
    assert gap.interval is None
    assert str(gap) == "knn: free minus tau 0.5 is +1.00 (one seed, so nothing can be said of noise)."


def test_two_seeds_are_neither_ahead_nor_behind():
    gap = difference(lines(free=[2.0, 3.0], t0_5=[1.0, 2.01]), "knn", "free", "0.5")
    assert gap.interval[0] > 0
    assert not gap.clear
    assert str(gap).endswith("2 seeds): two seeds cannot tell them apart.")


def test_the_best_temperature_is_picked_and_compared_on_common_seeds():
    """Seed 1 is a hard one, which 0.2 has not: by its own mean it would be the best."""
    uneven = lines(free=[80.0, 60.0], t0_5=[81.0, 61.0], t0_2=[80.5, None])
    assert spreads(uneven)["0.2"]["knn"].mean > spreads(uneven)["0.5"]["knn"].mean
    assert best_temperature(uneven, "knn") == "0.5"
    (gap,) = (gap for gap in against_best_temperature(uneven) if gap.metric == "knn")
    assert (gap.second, gap.per_seed) == ("0.5", {0: -1.0})
    apart = lines(free=[1.0, 1.0], t0_5=[2.0], t0_2=[None, 3.0])
    assert best_temperature(apart, "knn") is None
    assert against_best_temperature(apart) == []


def test_a_link_with_fewer_seeds_costs_the_others_none():
    uneven = lines(free=[1.0, 2.0, 3.0], t0_5=[0.0, 1.1, 2.0], calibrated=[5.0])
    found = {gap.first: len(gap.per_seed) for gap in against_best_temperature(uneven)}
    assert found == {"free": 3, "calibrated": 1}


def test_each_link_without_a_temperature_is_held_against_the_best_one_of_each_metric():
    assert [(gap.metric, gap.second, gap.mean) for gap in against_best_temperature(SWEEP)] == [
        ("knn", "0.5", 3.0),
        ("minus", "0.1", -14.0),
    ]
    more = SWEEP + lines(calibrated=[85.0, 86.0, 87.0], learnable=[1.0, 2.0, 3.0])
    found = [(gap.first, gap.second, gap.mean) for gap in against_best_temperature(more)]
    assert found[:3] == [("free", "0.5", 3.0), ("calibrated", "0.5", 4.0), ("learnable", "0.5", -80.0)]
    assert against_best_temperature(lines(free=[1.0])) == []
    assert against_best_temperature(lines(t0_5=[1.0])) == []
