"""Towers of open_clip: the features are those of its own model, from images and texts as it prepares them."""

import numpy as np
import pytest
import torch
from PIL import Image

from taufree.experiments.image_text.clip import CLIP, CLIPSettings
from taufree.experiments.image_text.towers import ImageTowers, load_text_tower
from taufree.experiments.images.augment import MEAN, STD
from taufree.experiments.language.tokens import tokenise
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import Training
from tests.experiments.image_text.test_clip import TINY

open_clip = pytest.importorskip("open_clip", reason="open_clip is not installed")
NAME = "ViT-S-32-alt"


@pytest.fixture(scope="module")
def original():
    torch.manual_seed(0)
    return open_clip.create_model(NAME, force_image_size=64).eval()


@pytest.fixture(scope="module")
def name(original, tmp_path_factory):
    path = tmp_path_factory.mktemp("open_clip") / "weights.pt"
    torch.save(original.state_dict(), path)
    return f"open_clip:{NAME}/{path}"


@torch.no_grad()
def test_image_features(original, name):
    towers = ImageTowers(name, "imagenet", 64)
    tower = towers.make().eval()
    assert towers.width() == 256
    assert tower.pretrained
    picture = Image.effect_noise((64, 64), 80).convert("RGB")
    prepare = open_clip.image_transform(64, is_train=False)
    raw = torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255
    ours = (raw - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    expected = original.encode_image(prepare(picture)[None])
    torch.testing.assert_close(tower(ours[None]), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_text_features(original, name):
    tower, tokenizer, width = load_text_tower(name)
    texts = ["a dog runs", "two children on a swing, in front of a house with a red door", "word " * 200]
    expected = original.encode_text(open_clip.get_tokenizer(NAME)(texts))
    tokens = tokenise(tokenizer, texts, 100)
    assert width == expected.shape[1]
    assert tokens.lengths.tolist()[0] == 5
    assert tokens.words[0].sum() == 3
    torch.testing.assert_close(tower(tokens.ids.long(), tokens.attention), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("open_clip:ViT-B-32", r"^a tower of open_clip must be open_clip:MODEL/PRETRAINED, got"),
        ("open_clip:no-such/random", r"^open_clip:no-such/random cannot be loaded: MODEL must be [^\n]*\.$"),
        ("open_clip:RN50/no-such", r"PRETRAINED one of openai, yfcc15m, cc12m, random, or a file [^\n]*\.$"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(given, why):
    with pytest.raises(ValueError, match=why):
        ImageTowers(given, "imagenet", 64).width()
    with pytest.raises(ValueError, match=r"model must be a trained encoder" if "random" in given else why):
        load_text_tower(given)


def test_the_recipe_trains_on_them(name, data):
    settings = CLIPSettings(**{**TINY, "crop": 64, "epochs": 1, "backbone": name, "model": name})
    recipe = CLIP(settings)
    recipe.load(data)
    training = Training(Run("clip", "fitted", 0, settings, data=data), recipe)
    batch = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
    recipe.step(training.model, batch, training.link).loss.backward()
    first, last = (
        next(iter(tower.parameters())) for tower in (training.weights.image, training.weights.text)
    )
    assert first.grad.norm() > 0
    assert last.grad.norm() > 0
