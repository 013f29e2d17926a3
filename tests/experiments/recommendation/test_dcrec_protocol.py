"""DCRec's protocol: what is trained on, what is judged, and what neither may know."""

import itertools
import math

import pytest
import torch

from taufree.experiments.recommendation import dcrec
from taufree.experiments.recommendation.interactions import COLUMNS
from tests.support.shop import begun


def test_the_validation_items_are_trained_on_by_the_public_protocol_alone(shop):
    for protocol in ("validation", "public"):
        training = begun(shop, protocol=protocol)
        model, rows = training.weights, training.recipe.data.train
        row, end = model.train_samples
        targets = {(int(r), int(e)) for r, e in zip(row, end, strict=True)}
        held_out = {(r, int(e)) for r, e in enumerate(rows.lengths)}
        assert (held_out <= targets) == (protocol == "public")
        assert bool(held_out & targets) == (protocol == "public")
        # No training sample has a test item after its history: that is in the test rows alone.
        assert int(end.max()) <= int(rows.lengths.max())
        assert any("chooses the epoch by the test items" in note for note in training.recipe.notes) == (
            protocol == "public"
        )


def test_items_that_training_does_not_know_are_left_out_and_counted(shop, tmp_path):
    for part in ("train", "test"):
        text = (shop / f"shop.{part}.inter").read_text()
        odd = "x\t1 2 3\tnew\ny\t1 newer\t2\n" if part == "test" else ""
        (tmp_path / f"odd.{part}.inter").write_text(text + odd)
    recipe = begun(tmp_path).recipe
    assert recipe.notes[-1].startswith(
        "1 of 122 test items never occur in the histories to train on; they are"
    )
    assert 120 not in recipe.judged["test"].tolist()
    known = recipe.data.train.items[recipe.data.train.known]
    assert set(recipe.negatives["test"].flatten().tolist()) <= set(known.tolist())
    assert 120 in begun(tmp_path, protocol="public").recipe.judged["test"].tolist()


def plain(path):
    """The rows of a file: the user's items before, and the one that came next."""
    fields = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return [(items.split(), target) for _, items, target in fields]


def test_the_figures_are_those_of_a_slow_count(shop, tmp_path, monkeypatch):
    """Of files read anew, one user after the other, with the parts of a judgement as small as can be."""
    for part in ("train", "test"):
        text = (shop / f"shop.{part}.inter").read_text().splitlines()
        text.insert(7, "odd\t1 2 3\tnew" if part == "train" else "odd\t1 2 3 new\tnewer")
        (tmp_path / f"odd.{part}.inter").write_text("\n".join(text) + "\n")
    for name in ("HISTORIES_PER_PASS", "USERS_PER_CHUNK"):
        monkeypatch.setattr(dcrec, name, 13)
    training = begun(tmp_path, epochs=2)
    training.train_epoch()
    recipe, model = training.recipe, training.weights.eval()
    number: dict[str, int] = {}
    files = {part: plain(tmp_path / f"odd.{part}.inter") for part in ("train", "test")}
    for items, target in itertools.chain(*files.values()):
        for item in (*items, target):
            number.setdefault(item, len(number))
    trained = {number[item] for items, _ in files["train"] for item in items}
    for part, rows in files.items():
        with torch.no_grad():
            wanted = torch.cat([model(torch.tensor([user]), part).wanted for user in range(len(rows))])
            scores = (wanted @ model.vectors.T).tolist()
            found = recipe._figures(model, part)
        drawn, full = [], []
        for user, (items, target) in enumerate(rows):
            had, goal = {number[item] for item in items}, number[target]
            if goal not in trained:
                continue
            negatives = recipe.negatives[part][user].tolist()
            assert len(negatives) == 100
            assert set(negatives) <= trained - had - {goal}
            own = scores[user][goal]
            drawn.append(sum(scores[user][item] >= own for item in negatives))
            rivals = set(range(len(number))) - had - {goal}
            full.append(sum(scores[user][item] >= own for item in rivals))
        assert len(drawn) < len(rows)
        for ranks, name in ((drawn, ""), (full, "full_")):
            for cut in (1, 5, 10):
                share = sum(rank < cut for rank in ranks) / len(ranks)
                assert found[f"{name}hr{cut}"] == pytest.approx(100 * share, abs=1e-9)
            gain = sum(1 / math.log2(rank + 2) for rank in ranks if rank < 10) / len(ranks)
            assert found[f"{name}ndcg10"] == pytest.approx(100 * gain, abs=1e-9)


def test_nothing_that_is_held_out_has_a_part_in_training(shop, tmp_path):
    """Other items to validate and test with: the same weights, bit for bit, and the same graphs."""
    halves = [f"{user}\t{' '.join(map(str, range(user, user + 15)))}\t{user}" for user in (0, 15)]
    trained = []
    for shift in (0, 7):
        folder = tmp_path / str(shift)
        folder.mkdir()
        for part in ("train", "test"):
            lines = ["\t".join(COLUMNS), *halves]  # which give all items their numbers
            for user, (items, target) in enumerate(plain(shop / f"shop.{part}.inter")):
                before = items if part == "train" else [*items[:-1], str((int(items[-1]) + shift) % 30)]
                lines.append(f"{user}\t{' '.join(before)}\t{(int(target) + shift) % 30}")
            (folder / f"x.{part}.inter").write_text("\n".join(lines) + "\n")
        trained.append(begun(folder))
        trained[-1].train_epoch()
    one, other = trained
    assert all(map(torch.equal, one.weights.parameters(), other.weights.parameters()))
    assert one.curves["loss"] == other.curves["loss"]
    assert one.curves["choice"] != other.curves["choice"]
    assert not torch.equal(one.weights.test_weights, other.weights.test_weights)  # has the validation items
