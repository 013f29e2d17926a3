import pytest
import torch
from transformers import (
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from taufree.experiments.language.tokens import load_masked_lm, load_tokenizer, logits_at, mask, tokenise

SENTENCES = [
    "The nurse is in the kitchen .",
    "The doctor .",
    "A young man was kind and walking with the dog .",
]


def test_rows_hold_the_tokenizers_numbers_and_a_batch_is_cut_to_its_own_length(tokenizer):
    tokens = tokenise(tokenizer, [*SENTENCES, "man " * 40], length=128)
    assert tokens.ids.shape == (4, 48)
    for row, sentence in enumerate(SENTENCES):
        expected = tokenizer(sentence)["input_ids"]
        assert tokens.ids[row, : len(expected)].tolist() == expected
        assert tokens.lengths[row] == tokens.attention[row].sum() == len(expected)
        assert (tokens.ids[row, len(expected) :] == tokenizer.pad_token_id).all()
        assert tokens.counts[row] == tokens.words[row].sum() == len(expected) - 2
    batch = tokens.take(torch.tensor([2, 1]))
    assert batch.ids.shape == (2, 16)
    assert torch.equal(batch.ids, tokens.ids[[2, 1], :16].long())
    assert tokenise(tokenizer, ["man " * 40], length=10).lengths.tolist() == [10]


def test_masks_are_berts_and_never_on_special_tokens(tokenizer):
    tokens = tokenise(tokenizer, SENTENCES * 400, length=32).take(torch.arange(1200))
    masked, positions, targets = mask(tokens, tokenizer, torch.Generator().manual_seed(0))
    words = int(tokens.words.sum())
    assert len(positions) == len(set(positions.tolist())) == round(0.15 * words)
    assert tokens.words.flatten()[positions].all()
    assert torch.equal(targets, tokens.ids.flatten()[positions])
    untouched = torch.ones(tokens.ids.numel(), dtype=torch.bool)
    untouched[positions] = False
    assert torch.equal(masked.flatten()[untouched], tokens.ids.flatten()[untouched])
    new = masked.flatten()[positions]
    share = (new == tokenizer.mask_token_id).float().mean()
    kept = (new == targets).float().mean()
    assert 0.77 < share < 0.83
    assert 0.08 < kept < 0.12
    again = mask(tokens, tokenizer, torch.Generator().manual_seed(0))
    assert torch.equal(masked, again[0])
    assert len(mask(tokens.take(torch.tensor([1])), tokenizer)[1]) == 1


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (BertForMaskedLM, None),
        (RobertaForMaskedLM, RobertaConfig),
        (ElectraForMaskedLM, ElectraConfig),
        (DistilBertForMaskedLM, DistilBertConfig),
    ],
)
def test_logits_at_some_places_are_those_of_the_whole(kind, config, tokenizer, model):
    if config is DistilBertConfig:
        model = kind(
            DistilBertConfig(vocab_size=len(tokenizer), dim=32, n_layers=1, n_heads=2, hidden_dim=32)
        )
    elif config is not None:
        size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        model = kind(config(vocab_size=len(tokenizer), pad_token_id=0, embedding_size=32, **size))
    model.eval()
    batch = tokenise(tokenizer, SENTENCES, length=32).take(torch.arange(3))
    places = torch.tensor([3, 17, 40, 3])
    with torch.no_grad():
        whole = model(input_ids=batch.ids, attention_mask=batch.attention).logits.flatten(0, 1)
        some = logits_at(model, batch.ids, batch.attention, places)
        torch.testing.assert_close(some, whole[places])
        after = model(input_ids=batch.ids, attention_mask=batch.attention).logits.flatten(0, 1)
    assert torch.equal(after, whole)  # nothing is left of the hook


def test_a_model_is_loaded_in_float32_and_what_it_lacks_is_named(folder, headless, tmp_path):
    model, missing = load_masked_lm(str(folder))
    assert missing == []
    model.half().save_pretrained(tmp_path)
    assert {weight.dtype for weight in load_masked_lm(str(tmp_path))[0].parameters()} == {torch.float32}
    assert any("cls.predictions" in name for name in load_masked_lm(str(headless))[1])


@pytest.mark.parametrize("load", [load_tokenizer, load_masked_lm])
def test_a_folder_without_a_model_is_refused_in_a_sentence(load, tmp_path):
    with pytest.raises(ValueError, match=r"model must be .* which cannot be loaded \(\w+: .+\)\.$"):
        load(str(tmp_path))
