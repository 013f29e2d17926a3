"""A masked language model of two small layers with random weights, in a folder as transformers saves it."""

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from tests.support.small_bert import make_model, make_tokenizer, write_encoder


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def model(tokenizer):
    return make_model(tokenizer)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A whole masked language model."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def headless(tmp_path_factory):
    """The same without the head that predicts words."""
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def by_frequency(model, tokenizer):
    """A model for which each token has one probability wherever it stands: softmax of a bias, set by name."""

    def make(**shares):
        """Tokens with these probabilities; all others share the rest."""
        rest = (1 - sum(shares.values())) / (len(tokenizer) - len(shares))
        probabilities = torch.full((len(tokenizer),), rest)
        for name, share in shares.items():
            probabilities[tokenizer.convert_tokens_to_ids(name.replace("__", "##"))] = share
        with torch.no_grad():
            model.get_output_embeddings().weight.zero_()  # the input embeddings as well, which are the same
            model.get_output_embeddings().bias.copy_(probabilities.log())
        return model

    return make
