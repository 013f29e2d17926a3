"""A masked language model of two small layers with random weights, and its tokenizer."""

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = """
. , ! the a an he she his her him man woman men women boy girl nurse doctor is was were in with and to of
who kind rude kitchen protect ##ed ##ing ##s walk play sleep run dog cat house table people two young person
outside
""".split()  # noqa: SIM905
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789'-"


def make_tokenizer():
    pieces = dict.fromkeys([*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)])
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": token for name, token in names.items()}
    )


def make_model(tokenizer, spread=0.5):
    """Weights larger than usual, so that a random model has opinions."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), initializer_range=spread, **size)).eval()


def write_encoder(path):
    """Its encoder alone in a folder, as transformers saves it."""
    tokenizer = make_tokenizer()
    make_model(tokenizer, spread=0.1).bert.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
