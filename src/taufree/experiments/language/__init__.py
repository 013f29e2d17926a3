"""Language: gender-swapped entailment pairs, masked language models, and how biased they are.

``nli_pairs`` and ``gender_swap`` make the training pairs, ``tokens`` turns sentences into tensors once,
``stereoset`` and ``crows`` judge any masked language model of transformers, ``pretrain`` adapts one.
"""

RECIPES = {"mabel": "mabel", "sentences": "sentences"}
