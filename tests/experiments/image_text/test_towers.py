"""Towers: batch norms, precision, parameters of heads and towers, and what is refused."""

import pytest
import torch
from torch import nn

from taufree.experiments.image_text.towers import ImageTower, ImageTowers, TwoTowers, load_text_tower
from taufree.experiments.images.backbones import make_backbone


@pytest.mark.parametrize("pretrained", [True, False])
def test_a_pretrained_network_keeps_its_statistics(pretrained):
    torch.manual_seed(0)
    tower = ImageTower(make_backbone("resnet18"), pretrained=pretrained).train()
    tower(torch.randn(2, 3, 32, 32))
    assert bool((tower.backbone.bn1.running_mean == 0).all()) is pretrained
    assert tower.training


def test_heads_are_float32_and_towers_may_be_less():
    model = TwoTowers(nn.Linear(6, 8), nn.Linear(6, 4), (8, 4), 5, dropout=0.0)
    given = torch.randn(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        image, text = model(given, (given,))
        (alone,) = model(None, (given,))
    assert image.dtype == text.dtype == torch.float32
    assert image.shape == text.shape == (3, 5)
    assert torch.equal(alone, text)
    assert torch.equal(model(given)[0], model(given, (given,))[0])
    assert {*model.heads, *model.towers} == {*model.parameters()}
    assert len(model.heads) == 4


def test_any_classifier_of_torchvision_is_a_tower():
    towers = ImageTowers("mobilenet_v3_small", "random", 64)
    assert towers.width() == 1024
    assert towers.make().eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1024)
    with pytest.raises(ValueError, match=r"^crop must be a size that vit_b_16 takes, got 64 \([^\n]*\)\.$"):
        ImageTowers("vit_b_16", "random", 64).width()
    with pytest.raises(ValueError, match=r"^the backbone must be [^\n]*, got 'squeezenet1_0'\.$"):
        ImageTowers("squeezenet1_0", "random", 64).make()


def test_a_text_tower_is_the_mean_of_an_encoders_states(encoder, tmp_path):
    tower, _, width = load_text_tower(str(encoder))
    assert width == 32
    ids, attention = torch.tensor([[2, 9, 3, 0]]), torch.tensor([[1, 1, 1, 0]])
    with torch.no_grad():
        states = tower.encoder(input_ids=ids[:, :3]).last_hidden_state
        assert torch.allclose(tower(ids, attention), states.mean(1), atol=1e-6)
    with pytest.raises(ValueError, match=r"^model must be the folder or the hub's name of an encoder, got"):
        load_text_tower(str(tmp_path))
