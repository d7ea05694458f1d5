"""Samples and steps, told from what passes the seams: by plain events, without a loop."""

import gc
from collections import UserDict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlvbench.autoprofile.batches import Samples, length
from mlvbench.autoprofile.steps import _BATCHES_WITHOUT_OPTIMIZER, Steps


class Thing(torch.nn.Module):
    """A loader, a model or an optimizer: something with an identity."""

    def __init__(self, trainable=True):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1), requires_grad=trainable)


class Lazy(dict):
    """Reads an item only when it is asked for it."""

    def __getitem__(self, key):
        raise AssertionError

    values = items = __iter__ = __getitem__


class Asked(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        raise AssertionError


def batch(size):
    return [torch.zeros(size, 3), torch.zeros(size)]


@dataclass
class Batch:
    name: str
    image: torch.Tensor


Pair = namedtuple("Pair", "image label")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.zeros(4, 2), 4),
        ([torch.zeros(5, 2), torch.zeros(4)], 5),
        ({"id": "a", "image": torch.zeros(6, 1)}, 6),
        ({"meta": {"x": [torch.tensor(3.0), torch.zeros(7)]}}, 7),
        (Batch("a", torch.zeros(8, 1)), 8),
        (Pair(torch.zeros(9), torch.zeros(1)), 9),
        (torch.tensor(1.0), None),
        (["a", 3, None], None),
        (torch.zeros(0, 3), 0),
        (UserDict(ids=torch.zeros(3, 1)), 3),
        (Lazy(image=torch.zeros(2)), 2),
        (torch.zeros(5).as_subclass(Asked), 5),
        (type("Other", (Mapping,), dict.fromkeys(["__getitem__", "__iter__", "__len__"], 1 / 1))(), None),
    ],
)
def test_the_length_of_a_batch(given, expected):
    assert length(given) == expected


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_has_no_length():
    assert length(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])) is None


def test_a_batch_that_contains_itself_is_given_up():
    endless = []
    endless.append(endless)
    assert length(endless) is None


# Samples


def train(samples, size=2, model=None, in_closure=False):
    return samples.trained(model or Thing(), [torch.zeros(size)], in_closure)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(0, 4))
def test_each_batch_counts_once_however_far_ahead_it_is_fetched(sizes, ahead):
    samples, loader, counted = Samples(), Thing(), []
    waiting = list(sizes)
    fetched = 0
    for index in range(len(sizes)):
        while waiting and fetched < index + 1 + ahead:
            samples.fetched(loader, batch(waiting.pop(0)))
            fetched += 1
        counted.append(train(samples))
        assert fetched > index + 1 or train(samples) is None, "a second network adds nothing"
    assert counted == sizes


@given(st.lists(st.sampled_from(["train", "validate"]), max_size=12), st.integers(1, 3))
def test_validation_adds_nothing(epochs, passes):
    samples, held = Samples(), Thing()
    total = expected = 0
    for epoch in epochs:
        loader = Thing() if epoch == "train" else held
        for size in (4, 4, 1):
            samples.fetched(loader, batch(size))
            if epoch == "train":
                expected += size
                for _ in range(passes):
                    total += train(samples) or 0
            else:
                samples.inferred()
        samples.ended(loader)
    assert total == expected


def test_validation_after_the_last_batch_was_fetched_ahead():
    samples, loader, held = Samples(), Thing(), Thing()
    samples.fetched(loader, batch(4))
    samples.fetched(loader, batch(3))
    assert train(samples) == 4
    samples.fetched(held, batch(100))
    samples.inferred()
    samples.ended(held)
    samples.ended(loader)
    assert [train(samples), train(samples)] == [3, None]


def test_validation_alone_leaves_nothing_to_train_on():
    samples, held = Samples(), Thing()
    for _ in range(3):
        samples.fetched(held, batch(4))
        samples.inferred()
    samples.ended(held)
    assert train(samples, 5) == 5, "the input of the model, and not the last batch"


def test_what_is_frozen_is_asked_again_in_the_next_epoch():
    samples, loader, model = Samples(), Thing(), Thing(trainable=False)
    samples.fetched(loader, batch(4))
    assert train(samples, model=model) is None
    model.requires_grad_(True)
    samples.ended(loader)
    assert train(samples, model=model) == 4


def test_a_teacher_without_gradients_takes_no_batch_from_the_student():
    samples, loader = Samples(), Thing()
    total = 0
    for size in (4, 4, 3):
        samples.fetched(loader, batch(size))
        samples.inferred()
        total += train(samples)
    assert total == 11


def test_validation_in_the_middle_of_an_epoch_with_a_batch_fetched_ahead():
    samples, loader, held = Samples(), Thing(), Thing()
    samples.fetched(loader, batch(4))
    samples.fetched(loader, batch(3))
    assert train(samples) == 4
    samples.fetched(held, batch(100))
    samples.inferred()
    samples.ended(held)
    samples.fetched(loader, batch(2))
    assert [train(samples), train(samples)] == [3, 2]


def test_what_has_nothing_to_train_takes_no_batch():
    samples, loader, metric = Samples(), Thing(), Thing(trainable=False)
    samples.fetched(loader, batch(4))
    assert train(samples, model=metric) is None
    assert train(samples) == 4
    assert train(Samples(), model=metric) is None


class Unhashable(Thing):
    __hash__ = None


def test_a_loader_of_any_kind():
    samples, loader = Samples(), Unhashable()
    samples.fetched(loader, batch(4))
    samples.ended(loader)
    assert train(samples) == 4
    del loader
    gc.collect()
    assert samples._loaders == {}


def test_a_batch_without_a_tensor_is_as_long_as_what_the_model_gets():
    samples, loader = Samples(), Thing()
    samples.fetched(loader, ["a text", "another"])
    assert train(samples, size=6) == 6


def test_without_a_loader_the_input_of_the_first_model_counts():
    samples, first, second = Samples(), Thing(), Thing()
    assert train(samples, 5, first) == 5
    assert train(samples, 5, second) is None
    samples.stepped()
    assert train(samples, 4, first) == 4
    assert train(samples, 4, first) == 4, "gradients are accumulated"


def test_without_a_loader_the_evaluations_of_a_closure_count_once_a_step():
    samples, model, whole = Samples(), Thing(), torch.zeros(8)
    for _ in range(3):
        assert samples.trained(model, [whole], in_closure=True) == 8
        assert samples.trained(model, [whole], in_closure=True) is None
        assert samples.trained(model, [torch.zeros(8)], in_closure=True) is None
        samples.stepped()


def test_without_a_loader_another_model_is_trained_later():
    samples, first, second = Samples(), Thing(), Thing()
    train(samples, 5, first)
    samples.stepped()
    train(samples, 5, second)
    samples.stepped()
    assert train(samples, 5, second) == 5


def test_a_batch_that_no_module_is_seen_to_get_counts_with_the_step():
    samples, loader = Samples(), Thing()
    samples.fetched(loader, batch(4))
    assert samples.stepped() == 4
    assert samples.stepped() is None
    samples.fetched(loader, batch(3))
    assert samples.used_unseen() == 3
    assert samples.used_unseen() is None


def test_a_loader_that_nothing_is_trained_on_costs_no_more_with_time():
    samples, loader = Samples(), Thing()
    for _ in range(5000):
        samples.fetched(loader, batch(1))
    assert len(samples._fetched.lengths) < 5000


# Steps


def steps_of(steps, sequence, optimizers):
    return [steps.stepped(optimizers[name]) for name in sequence]


def named(names="abc"):
    return {name: Thing() for name in names}


@given(st.integers(1, 8), st.integers(1, 10), st.integers(2, 20))
def test_two_optimizers_in_turn_are_one_training(ours, theirs, rounds):
    steps = Steps()
    led = steps_of(steps, ("a" * ours + "b" * theirs) * rounds, named())
    assert led == ([True] * ours + [False] * theirs) * rounds
    assert steps.count == ours * rounds


def test_a_critic_that_takes_ever_more_steps_does_not_lead():
    steps, sequence = Steps(), "".join("a" + "b" * count for count in (8, 14, 25))
    assert sum(steps_of(steps, sequence, named())) == steps.count == 3


def test_many_optimizers_in_turn_are_one_training():
    names = "abcdefghijklmnopqrstuvwxyz"
    steps = Steps()
    steps_of(steps, names * 20, named(names))
    assert steps.count == 20


@given(st.integers(1, 50), st.integers(12, 50))
def test_a_script_that_trains_twice(first, second):
    steps, optimizers = Steps(), named()
    steps_of(steps, "a" * first + "b" * second, optimizers)
    assert steps.count == first + second
    assert steps.stepped(optimizers["b"])


def test_a_script_that_trains_twice_and_has_dropped_the_first_optimizer():
    steps = Steps()
    steps.stepped(Thing())
    assert steps.stepped(Thing())
    assert steps.count == 2


def test_without_an_optimizer_the_batches_are_the_steps_in_the_end():
    steps = Steps()
    assert not any(steps.batch_began() for _ in range(5))
    assert steps.count == 0, "an optimizer may still come"
    steps.ended()
    assert steps.count == 5


def test_without_an_optimizer_for_long_the_batches_are_the_steps():
    steps = Steps()
    led = [steps.batch_began() for _ in range(_BATCHES_WITHOUT_OPTIMIZER + 3)]
    assert led.index(True) == _BATCHES_WITHOUT_OPTIMIZER
    assert all(led[_BATCHES_WITHOUT_OPTIMIZER:])
    assert steps.count == _BATCHES_WITHOUT_OPTIMIZER + 2, "the last batch is not done"


def test_an_optimizer_that_steps_unseen_leaves_the_steps_to_the_batches_at_once():
    steps = Steps()
    steps.batch_began()
    steps.unseen = True
    assert [steps.batch_began(), steps.batch_ended()] == [True, True]


def test_with_an_optimizer_batches_are_no_steps():
    steps = Steps()
    steps.stepped(optimizer := Thing())
    assert not any(steps.batch_began() or steps.batch_ended() for _ in range(1000))
    steps.ended()
    assert steps.count == 1
    assert steps.stepped(optimizer)
