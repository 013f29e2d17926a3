"""The Hugging Face Trainer with the loss: its gradients are those of all accumulated rows."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import Trainer, TrainingArguments

import taufree
from taufree.integrations.transformers import ContrastiveLoss

ROWS = 18  # batches of 4, three of them accumulated: 4 + 4 + 4, then 4 + 2


class Encoder(nn.Module):
    """Two towers that remember what they saw."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(5, 4), nn.Linear(5, 4)
        self.seen = []

    def forward(self, a, b):
        self.seen.append((a, b))
        return {"query": self.one(a), "key": self.two(b)}


class Recording(torch.optim.SGD):
    """Keeps the gradients of every step, and what the encoder saw since the step before."""

    def __init__(self, encoder):
        super().__init__(encoder.parameters(), lr=0.1)
        self.encoder, self.steps = encoder, []

    def step(self, closure=None):
        gradients = [p.grad.clone() for p in self.encoder.parameters()]
        weights = [p.detach().clone() for p in self.encoder.parameters()]
        self.steps.append((self.encoder.seen, weights, gradients))
        self.encoder.seen = []
        return super().step(closure)


def rows(labels=True):
    draw = torch.Generator().manual_seed(0)
    data = [dict(zip("ab", torch.randn(2, 5, generator=draw), strict=True)) for _ in range(ROWS)]
    return [{**row, "labels": i % 3} for i, row in enumerate(data)] if labels else data


def trained(folder, function, data, held=None, **arguments):
    torch.manual_seed(0)
    encoder = Encoder()
    if held is not None:
        encoder.loss = held
    optimizer = Recording(encoder)
    trainer = Trainer(
        model=encoder,
        args=TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=4,
            per_device_eval_batch_size=ROWS,
            gradient_accumulation_steps=3,
            max_steps=2,
            max_grad_norm=0.0,
            use_cpu=True,
            remove_unused_columns=False,
            label_names=["labels"],
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=data,
        eval_dataset=data,
        optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
        compute_loss_func=function,
    )
    trainer.train()
    return trainer, optimizer


@pytest.mark.parametrize(
    "loss", [taufree.InfoNCE(symmetric=True), taufree.NTXent()], ids=["InfoNCE", "NTXent"]
)
def test_gradients_are_the_means_over_all_accumulated_rows(tmp_path, loss):
    trainer, optimizer = trained(tmp_path, ContrastiveLoss(loss, "query", "key"), rows())
    assert [[len(a) for a, _ in seen] for seen, _, _ in optimizer.steps] == [[4, 4, 4], [4, 2]]
    for seen, weights, gradients in optimizer.steps:
        encoder = Encoder()
        torch.nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(weights), encoder.parameters())
        total = sum(len(a) for a, _ in seen)
        for a, b in seen:
            (loss(encoder.one(a), encoder.two(b)) * len(a) / total).backward()
        for parameter, found in zip(encoder.parameters(), gradients, strict=True):
            torch.testing.assert_close(found, parameter.grad)
            assert found.norm() > 1e-3
    data = rows()
    encoder = trainer.model
    whole = (
        encoder.one(torch.stack([row["a"] for row in data])),
        encoder.two(torch.stack([row["b"] for row in data])),
    )
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss(*whole).item(), rel=1e-5)


def test_an_evaluation_does_not_move_a_calibrated_link(tmp_path):
    link = taufree.CalibratedLogOdds()
    trainer, _ = trained(tmp_path, ContrastiveLoss(taufree.InfoNCE(link=link), "query", "key"), rows())
    moment = link.moment.clone()
    assert moment != 1
    trainer.evaluate([{**row, "b": row["b"] + 9} for row in rows()])
    assert link.moment == moment


def test_without_a_loss_it_is_info_nce_with_a_fitted_gain():
    function = ContrastiveLoss(None, "query", "key")
    assert isinstance(function.loss, taufree.InfoNCE)
    assert isinstance(function.loss.link, taufree.FittedLogOdds)


def test_a_loss_that_the_model_holds_is_saved_with_its_gain(tmp_path):
    function = ContrastiveLoss(None, "query", "key")
    trainer, _ = trained(tmp_path, function, rows(), held=function.loss)
    function.loss.link.log_gain.fill_(0.7)
    trainer.save_model(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved["loss.link.log_gain"].item() == pytest.approx(0.7)


def test_without_labels_the_trainer_would_scale_wrongly(tmp_path):
    with pytest.raises(ValueError, match=r"labels must be in every batch, zeros \[N\] will do"):
        trained(tmp_path, ContrastiveLoss(taufree.InfoNCE(), "query", "key"), rows(labels=False))


def test_labels_go_to_sup_con_and_ignored_ones_are_not_counted():
    z, labels = (
        torch.randn(6, 3, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 0, 1, 1, 2, 2]),
    )
    found = ContrastiveLoss(taufree.SupCon(), 0)((z,), labels, num_items_in_batch=torch.tensor(24))
    torch.testing.assert_close(found, taufree.sup_con(z, labels) / 4)
    labels[0] = -100
    found = ContrastiveLoss(taufree.NTXent(), 0, 1)((z, z + 1), labels, num_items_in_batch=10)
    torch.testing.assert_close(found, taufree.nt_xent(z, z + 1) / 2)
    with torch.no_grad():  # an evaluation
        found = ContrastiveLoss(taufree.NTXent(), 0, 1)((z, z + 1), None)
    torch.testing.assert_close(found, taufree.nt_xent(z, z + 1))


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ((nn.MSELoss(), "a"), TypeError, "loss must be an InfoNCE, NTXent or SupCon of taufree, got MSELoss"),
        ((taufree.NTXent(reduction="sum"), "a"), ValueError, "reduction=\"mean\", got 'sum'"),
        ((taufree.NTXent(), "a"), ValueError, r"^names must name the 2 outputs \[N, D\] of NTXent, got 1\."),
        ((taufree.SupCon(), "a", "b"), ValueError, r"^names must name the 1 outputs .* of SupCon, got 2\."),
    ],
)
def test_bad_arguments(arguments, error, told):
    with pytest.raises(error, match=told):
        ContrastiveLoss(*arguments)


def test_bad_calls():
    function = ContrastiveLoss(taufree.NTXent(), "query", "value")
    outputs = {"query": torch.eye(2), "key": torch.eye(2)}
    with pytest.raises(ValueError, match=r"among the model's outputs \(query, key\), got 'value'"):
        function(outputs, torch.zeros(2), 2)
    with pytest.raises(ValueError, match=r"outputs \(1 values\), got 'query'"):
        function((torch.eye(2),), torch.zeros(2), 2)
    hidden = {"query": torch.zeros(2, 5, 3), "key": torch.zeros(2, 5, 3)}  # of every token
    with pytest.raises(ValueError, match=r"^output 'query' must have shape \[N, D\] .* got \[2, 5, 3\]\.$"):
        ContrastiveLoss(taufree.NTXent(), "query", "key")(hidden, torch.zeros(2), 2)
    with pytest.raises(ValueError, match="num_items_in_batch must be the number"):
        ContrastiveLoss(taufree.NTXent(), "query", "key")(outputs, torch.zeros(2))
