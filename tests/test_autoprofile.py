"""PyTorch's seams as phases: what each kind of training loop comes to, by a fake clock, and what it does not notice."""

import sys
import threading
import traceback
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.optim.optimizer as hooks
from fake_clock import FakeClock
from simulated_device import SimulatedDevice
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter
from vit import Vit, train

from mlvbench.autoprofile import Block, autoprofile
from mlvbench.autoprofile.seams import SEAMS
from mlvbench.counting.device import accelerator_of
from mlvbench.monitoring import ThroughputMonitor, recorder_of


@pytest.fixture
def times(clock):
    """Profiles a block with a snapshot at its end, and gives its phases, samples and steps."""

    @contextmanager
    def profile():
        figures = {}
        with autoprofile(1000, clock) as monitor:
            yield figures
        [record] = monitor.records
        figures.update({key[2:]: value for key, value in record.items() if key.startswith("t_")})
        figures.update(samples=record["samples"], steps=record["step"], wall=record["wall_sec"])

    return profile


class Data(Dataset):
    """Takes a second an item."""

    def __init__(self, clock, length):
        self.clock = clock
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.clock.advance(1)
        return torch.ones(2), torch.tensor(0)


class Slow(nn.Module):
    """Takes `seconds` forwards and twice as many backwards."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock = clock
        self.seconds = seconds
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        self.clock.advance(self.seconds)
        x = self.inner(x)
        if x.requires_grad:
            x.register_hook(lambda gradient: self.clock.advance(2 * self.seconds))
        return x


class SlowSGD(torch.optim.SGD):
    """Takes a second a step."""

    def __init__(self, clock, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.clock = clock

    def step(self, closure=None):
        self.clock.advance(1)
        return super().step(closure)


def optimizer_of(model):
    return SlowSGD(model.clock, model.parameters(), lr=0.01)


def loop(model, loader, optimizer, loss_fn=None):
    for image, label in loader:
        output = model(image)
        loss = loss_fn(output, label) if loss_fn else output.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_plain_loop(clock, times):
    model = Slow(clock, 10)
    with times() as figures:
        loop(model, DataLoader(Data(clock, 7), 4), optimizer_of(model), nn.CrossEntropyLoss())
        with torch.no_grad():
            for image, label in DataLoader(Data(clock, 3), 3):
                nn.CrossEntropyLoss()(model(image), label)
    assert figures == {
        "data": 7 + 3, "forward": 20, "loss": 0, "backward": 40, "optimizer": 2, "inference": 10,
        "samples": 7, "steps": 2, "wall": 82,
    }  # fmt: skip


def test_the_interval_is_from_the_first_seam_to_the_last(clock, times):
    model = Slow(clock, 1)
    with times() as figures:
        clock.advance(1000)
        model(torch.ones(1, 2))
        clock.advance(5)
        model(torch.ones(1, 2))
        clock.advance(1000)
    assert figures["wall"] == 7


def test_a_snapshot_every_so_many_steps_and_one_of_the_tail(clock):
    model = Slow(clock, 1)
    with autoprofile(2, clock) as monitor:
        loop(model, DataLoader(Data(clock, 5), 1), optimizer_of(model))
    assert [(record["step"], record["samples"]) for record in monitor.records] == [(2, 2), (4, 2), (5, 1)]
    assert sum(record["t_forward"] for record in monitor.records) == 5


def test_gradient_accumulation(clock, times):
    model = Slow(clock, 1)
    optimizer = optimizer_of(model)
    with times() as figures:
        for number, (image, _) in enumerate(DataLoader(Data(clock, 8), 2), 1):
            model(image).sum().backward()
            if number % 2 == 0:
                optimizer.step()
    assert (figures["samples"], figures["steps"], figures["forward"]) == (8, 2, 4)


def test_a_gan_has_the_samples_and_steps_of_its_leading_network(clock, times):
    generator, critic = Slow(clock, 1), Slow(clock, 10)
    optimizers = optimizer_of(critic), optimizer_of(generator)
    with times() as figures:
        for real, _ in DataLoader(Data(clock, 6), 2):
            fake = generator(torch.ones(len(real), 2))
            (critic(real) - critic(fake.detach())).sum().backward()
            optimizers[0].step()
            critic(fake).sum().backward()
            optimizers[1].step()
    assert (figures["samples"], figures["steps"], figures["optimizer"]) == (6, 3, 6)
    assert figures["forward"] == 3 * (1 + 30)


def test_a_closure_nests_in_the_optimizer(clock, times):
    model = Slow(clock, 1)
    optimizer = optimizer_of(model)

    def closure(image):
        optimizer.zero_grad()
        loss = model(image).sum()
        loss.backward()
        return loss

    with times() as figures:
        for image, _ in DataLoader(Data(clock, 4), 2):
            optimizer.step(partial(closure, image))
    assert figures == {
        "data": 4, "optimizer": 2 * (1 + 3), "forward": 2, "backward": 4, "optimizer/forward": 2,
        "optimizer/backward": 4, "samples": 4, "steps": 2, "wall": 12,
    }  # fmt: skip


def test_lbfgs_on_the_whole_data_without_a_loader(clock, times):
    model, whole = Slow(clock, 1), torch.ones(9, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = model(whole).square().sum()
        loss.backward()
        return loss

    with times() as figures:
        for _ in range(3):
            optimizer.step(closure)
    assert (figures["samples"], figures["steps"]) == (27, 3)
    assert figures["optimizer/forward"] == figures["forward"] > 3


def test_rollouts_are_inference(clock, times):
    policy = Slow(clock, 1)
    optimizer = optimizer_of(policy)
    with times() as figures:
        for _ in range(2):
            with torch.inference_mode():
                for _ in range(5):
                    policy(torch.ones(1, 2))
            policy(torch.ones(5, 2)).sum().backward()
            optimizer.step()
    assert (figures["inference"], figures["forward"]) == (10, 2)
    assert (figures["samples"], figures["steps"]) == (10, 2)


def test_a_skipped_step_of_the_scaler_is_no_step(clock, times):
    model = Slow(clock, 1)
    optimizer = optimizer_of(model)
    scaler = torch.amp.GradScaler("cpu")
    with times() as figures:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(3, 2)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert (figures["steps"], figures["samples"], figures["optimizer"]) == (2, 9, 2)


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.ones(5, 2)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_streams_and_workers(clock, times, workers):
    model = Slow(clock, 1)
    optimizer = optimizer_of(model)
    loader = DataLoader(Stream(), 2, **workers)
    with times() as figures:
        for _ in range(3):
            for image in loader:
                model(image).sum().backward()
                optimizer.step()
    assert (figures["samples"], figures["steps"]) == (15, 9)
    assert "data" in figures


class Transformed(Data):
    """Transforms each image by a module, as torchvision does."""

    def __init__(self, clock, length):
        super().__init__(clock, length)
        self.transform = nn.Linear(2, 2)

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return self.transform(image).detach(), label


def test_a_module_that_transforms_is_part_of_fetching(clock, times):
    model = Slow(clock, 1)
    with times() as figures:
        loop(model, DataLoader(Transformed(clock, 6), 2), optimizer_of(model))
        with torch.no_grad():
            for image, _ in DataLoader(Transformed(clock, 4), 2):
                model(image)
    assert (figures["data"], figures["samples"], figures["forward"]) == (10, 6, 3)
    assert not [key for key in figures if "/" in key]


class Metric(nn.Module):
    def forward(self, x):
        return x.sum()


def test_a_metric_takes_no_batch(clock, times):
    model = Slow(clock, 1)
    with times() as figures:
        loop(model, DataLoader(Data(clock, 6), 2), optimizer_of(model))
        for image, _ in DataLoader(Data(clock, 4), 2):
            with torch.no_grad():
                output = model(image)
            Metric()(output)
    assert figures["samples"] == 6


def test_starting_workers_is_waiting_for_data(clock, times, monkeypatch):
    for name in ("__init__", "_reset"):
        original = getattr(_MultiProcessingDataLoaderIter, name)

        def slower(self, *args, _original=original, **kwargs):
            clock.advance(100)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(_MultiProcessingDataLoaderIter, name, slower)
    with times() as figures:
        list(DataLoader(Stream(), 2, num_workers=1))
    assert figures["data"] == 200, "the first calls the second"


class Checkpointed(nn.Module):
    def __init__(self, model, reentrant):
        super().__init__()
        self.model = model
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.model, x, use_reentrant=self.reentrant)


def test_what_is_recomputed_in_a_backward_is_part_of_it(clock, times):
    model = Slow(clock, 1)
    for reentrant in (True, False):
        with times() as figures:
            image = torch.ones(1, 2, requires_grad=True)
            Checkpointed(model, reentrant)(image).sum().backward()
        assert {key for key in figures if key not in ("samples", "steps", "wall")} == {"forward", "backward"}
        assert (figures["forward"], figures["samples"]) == (1, 1)
        assert figures["backward"] >= 3


def test_an_optimizer_that_steps_in_the_backward_is_part_of_it_and_the_batches_are_the_steps(clock):
    model = Slow(clock, 1)
    optimizer = optimizer_of(model)
    model.inner.bias.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with autoprofile(1, clock) as monitor:
        for image, _ in DataLoader(Data(clock, 6), 2):
            model(image).sum().backward()
    assert [(record["step"], record["samples"]) for record in monitor.records] == [(1, 2), (2, 2), (3, 2)]
    assert "t_optimizer" not in monitor.records[0]
    assert monitor.records[0]["t_backward"] == 3


def test_a_loss_inside_the_model_is_part_of_the_forward(clock, times):
    model = nn.Sequential(Slow(clock, 1), nn.MSELoss())
    model.forward = lambda x: model[1](model[0](x), x)
    with times() as figures:
        model(torch.ones(1, 2)).backward()
    assert "loss" not in figures


def test_another_thread_has_phases_of_its_own(clock, times):
    model, other = Slow(clock, 1), Slow(clock, 10)

    class Outer(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                thread = threading.Thread(target=rollout)
                thread.start()
                thread.join()
            return model(x)

    def rollout():
        with torch.no_grad():
            other(torch.ones(1, 2))

    with times() as figures:
        Outer()(torch.ones(1, 2))
    assert (figures["inference"], figures["forward"]) == (10, 11)
    assert "forward/inference" not in figures


# Errors


class OutOfMemory(RuntimeError):
    pass


def failing(*args, **kwargs):
    raise OutOfMemory


def frames_of(error):
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


class Failing(nn.Module):
    forward = failing


class FailingData(Dataset):
    __getitem__ = failing

    def __len__(self):
        return 3


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    backward = failing


def fail_in_forward():
    nn.Sequential(nn.Identity(), Failing())(torch.ones(1))


def fail_in_backward():
    FailingBackward.apply(torch.ones(1, requires_grad=True)).backward()


def fail_in_fetch():
    next(iter(DataLoader(FailingData())))


def fail_in_closure():
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1).step(lambda: Failing()(torch.ones(1)))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 puts the frame back")
@pytest.mark.parametrize("fail", [fail_in_forward, fail_in_backward, fail_in_fetch, fail_in_closure])
def test_an_error_has_the_traceback_that_it_has_without_us(fail):
    with pytest.raises(OutOfMemory) as bare:
        fail()
    with autoprofile(), pytest.raises(OutOfMemory) as profiled:
        fail()
    assert frames_of(profiled.value) == frames_of(bare.value)


@dataclass(frozen=True)
class Frozen(Exception):
    number: int


def test_an_exception_that_takes_no_attribute_passes():
    class Raises(nn.Module):
        def forward(self, x):
            raise Frozen(3)

    with autoprofile(), pytest.raises(Frozen):
        nn.Sequential(Raises())(torch.ones(1))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 puts the frame back")
def test_an_error_that_a_model_catches_has_no_frame_of_ours():
    caught = []

    class Catches(nn.Module):
        def forward(self, x):
            try:
                nn.Sequential(Failing())(x)
            except OutOfMemory as error:
                caught.extend(frames_of(error))
            return x

    with autoprofile():
        Catches()(torch.ones(1))
    assert caught
    assert not [name for name in caught if "mlvbench" in name]


def test_what_a_signal_handler_of_the_scripts_raises_in_our_code_goes_on_its_way(clock):
    model = Slow(clock, 1)
    block = Block(1, clock)
    recorder_of(block.monitor).subscribe(failing)
    with block, pytest.raises(OutOfMemory):
        loop(model, DataLoader(Data(clock, 4), 2), optimizer_of(model))
    assert block.observer.error is None


def test_where_all_that_was_reached_raised_the_wall_time_is_what_it_took(clock, times):
    class Slowly(nn.Module):
        def forward(self, x):
            clock.advance(5)
            raise OutOfMemory

    with times() as figures, pytest.raises(OutOfMemory):
        Slowly()(torch.ones(1))
    assert figures == {"samples": 0, "steps": 0, "wall": 5}


def test_nothing_is_recorded_of_what_raised_and_the_next_is(clock, times):
    model = Slow(clock, 1)
    with times() as figures:
        for fail in (fail_in_forward, fail_in_backward, fail_in_fetch, fail_in_closure):
            with pytest.raises(OutOfMemory):
                fail()
        model(torch.ones(1, 2)).sum().backward()
    assert {key for key in figures if "/" in key} == set()
    assert (figures["forward"], figures["backward"]) == (1, 2)


def test_a_step_that_raised_leaves_no_phase_open(clock, times):
    model = Slow(clock, 1)
    optimizer = optimizer_of(model)
    with times() as figures:
        for closure in (failing, None):
            try:
                optimizer.step(closure)
            except OutOfMemory:
                clock.advance(50)
            model(torch.ones(2, 2)).sum().backward()
    assert (figures["optimizer"], figures["steps"], figures["forward"]) == (1, 1, 2)
    assert not [key for key in figures if "/" in key]


def test_a_step_that_raised_is_not_in_the_next_one(clock, times):
    model = Slow(clock, 1)
    optimizer = optimizer_of(model)
    with times() as figures:
        with pytest.raises(OutOfMemory):
            optimizer.step(failing)
        clock.advance(50)
        optimizer.step()
    assert (figures["optimizer"], figures["steps"]) == (1, 1)


def test_a_step_inside_a_step_that_raised_leaves_the_outer_one_open(clock, times):
    model = Slow(clock, 1)
    inner, outer = optimizer_of(model), optimizer_of(model)

    def closure():
        with pytest.raises(OutOfMemory):
            inner.step(failing)
        return model(torch.ones(2, 2)).sum()

    with times() as figures:
        outer.step(closure)
        outer.step(None)
    assert (figures["steps"], figures["optimizer/forward"]) == (2, 1)
    assert figures["optimizer"] == 1 + 1 + 1 + 1


def test_an_error_of_ours_ends_the_profiling_and_not_the_training(clock, monkeypatch):
    model = Slow(clock, 1)
    block = Block(1, clock)
    monkeypatch.setattr("mlvbench.autoprofile.batches.length", int)
    with pytest.warns(RuntimeWarning, match="profiling ended at an error of its own"), block as monitor:
        loop(model, DataLoader(Data(clock, 4), 2), optimizer_of(model))
    assert isinstance(block.observer.error, TypeError)
    assert block.observer.error.__traceback__ is None, "it would hold the batch"
    assert monitor.records == []


# What is not noticed


def places():
    return [
        *(vars(seam.owner).get(seam.attribute) for seam in SEAMS),
        dict(hooks._global_optimizer_pre_hooks),
        dict(hooks._global_optimizer_post_hooks),
    ]


def test_every_seam_is_restored(clock):
    before = places()
    with pytest.raises(KeyError), autoprofile(1, clock):
        during = places()
        raise KeyError
    assert places() == before
    assert not any(ours == theirs for ours, theirs in zip(during, before, strict=True))


def test_a_disabled_one_touches_nothing():
    before = places()
    with autoprofile(None) as monitor:
        assert places() == before
        train(Vit(), steps=1)
    assert monitor.records == []
    assert not monitor.enabled


def test_what_others_put_there_since_stays_and_ours_does_no_more(clock):
    bare = nn.Module.__call__
    try:
        with autoprofile(1, clock) as monitor:
            ours = nn.Module.__call__
            theirs = nn.Module.__call__ = lambda *args, **kwargs: ours(*args, **kwargs)
        assert nn.Module.__call__ is theirs
        assert nn.Linear(2, 2)(torch.ones(1, 2)).shape == (1, 2)
        assert monitor.snapshot(0).keys() & {"t_forward"} == set()
    finally:
        nn.Module.__call__ = bare


def test_two_at_once(clock):
    model = Slow(clock, 1)
    with autoprofile(1000, clock) as outer, autoprofile(1000, clock) as inner:
        loop(model, DataLoader(Data(clock, 4), 2), optimizer_of(model))
    assert outer.records == inner.records


def test_losses_are_bit_for_bit_the_same():
    bare, profiled = [], []
    for losses in (bare, profiled):
        torch.manual_seed(3)
        model = Vit()
        if losses is bare:
            losses += train(model)
        else:
            with autoprofile(7):
                losses += train(model)
    assert profiled == bare


def test_it_mixes_with_a_monitors_other_phases(clock):
    model = Slow(clock, 1)
    with autoprofile(1000, clock) as monitor:
        monitor.instrument(model, {"layer": "inner"})
        with monitor.phase("epoch"):
            loop(model, DataLoader(Data(clock, 2), 2), optimizer_of(model))
    [record] = monitor.records
    assert isinstance(monitor, ThroughputMonitor)
    assert {"t_epoch/forward/layer", "t_epoch/data", "t_epoch/optimizer"} <= record.keys()


def test_wrong_settings():
    with pytest.raises(ValueError, match="record_every_n_steps must be a positive integer or None, got 0"):
        autoprofile(0)


# Compiled


class Counting:
    """A backend that runs graphs as they are and counts them."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


# Importing Inductor warns of torch's own use of torch.jit.
inductor_warns = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def counting():
    torch._dynamo.reset()
    yield Counting()
    torch._dynamo.reset()


def modules_of_many_classes():
    for number in range(12):
        space = {}
        exec(f"def forward(self, x): return self.layer(x) + {number}", space)
        module = type(f"M{number}", (nn.Module,), {"forward": space["forward"]})()
        module.layer = nn.Linear(2, 2)
        yield module


@pytest.mark.parametrize("full", [True, False])
def test_graphs_stay_as_they_are(counting, full, clock):
    with autoprofile(1000, clock) as monitor:
        for module in modules_of_many_classes():
            torch.compile(module, backend=counting, fullgraph=full)(torch.ones(1, 2)).sum().backward()
    assert counting.graphs == 12, "one function for all modules would meet the recompile limit at 8"
    assert {"t_forward", "t_backward"} <= monitor.records[0].keys()


def test_what_the_seams_call_is_not_compiled(counting, clock):
    model = nn.Linear(2, 2)
    figures = []
    for profile in (nullcontext(), autoprofile(1000, clock)):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        counting.graphs = 0

        @torch.compile(backend=counting)
        def epoch(loader):
            return sum((model(image) ** 2).sum() for image in loader)

        with profile:
            epoch(DataLoader(torch.ones(6, 2), 2))
        figures.append((counting.graphs, dict(torch._dynamo.utils.counters["graph_break"])))
    assert figures[0] == figures[1]


@inductor_warns
def test_a_compiled_step_of_the_optimizer_leaves_the_steps_to_the_batches(counting, clock):
    model = Slow(clock, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(lambda: optimizer.step(), backend=counting)
    with autoprofile(1, clock) as monitor:
        for image, _ in DataLoader(Data(clock, 6), 2):
            model(image).sum().backward()
            step()
    assert [(record["step"], record["samples"]) for record in monitor.records] == [(1, 2), (2, 2), (3, 2)]


@inductor_warns
def test_a_whole_step_that_is_compiled(counting, clock):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=counting)
    def step(image):
        loss = model(image).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with autoprofile(1, clock) as monitor:
        for image, _ in DataLoader(Data(clock, 6), 2):
            step(image)
    assert sum(record["samples"] for record in monitor.records) == 6
    assert monitor.records[-1]["step"] == 3


# Devices


@pytest.mark.parametrize(("timing", "optimizer_seconds"), [("synchronize", 1), ("events", 0)])
def test_the_device_is_that_of_the_model(clock, monkeypatch, timing, optimizer_seconds):
    device = SimulatedDevice(clock)
    device.install(monkeypatch)
    model = Slow(clock, 1)
    optimizer = optimizer_of(model)
    found = {id(model.inner.weight): torch.device("cuda:0")}
    monkeypatch.setattr(
        "mlvbench.autoprofile.observer.accelerator_of",
        lambda tensors: next((found[id(tensor)] for tensor in tensors if id(tensor) in found), None),
    )
    with autoprofile(1000, clock, timing) as monitor:
        next(iter(DataLoader(Data(clock, 1))))
        assert device.calls == []
        device.launch(100)
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        device.launch(7)
        optimizer.step()
    assert monitor.device == torch.device("cuda:0")
    assert monitor.timing == timing
    [record] = monitor.records
    assert record["t_forward"] == 1, "what was in flight is not its own"
    assert record["t_optimizer"] == optimizer_seconds, "what the host does while the device works is hidden"


def device_of(monkeypatch, clock, model):
    """A simulated device that the model is found to be on."""
    device = SimulatedDevice(clock)
    device.install(monkeypatch)
    its = {id(parameter) for parameter in model.parameters()}
    monkeypatch.setattr(
        "mlvbench.autoprofile.observer.accelerator_of",
        lambda tensors: torch.device("cuda:0") if any(id(tensor) in its for tensor in tensors) else None,
    )
    return device


class OnDevice(nn.Module):
    """Takes no time of the host's, and some of the device's."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)
        self.device = None

    def forward(self, x):
        self.device.launch(10)
        return self.inner(x)


def test_the_last_interval_ends_when_the_device_is_done_with_it_and_not_later(clock, monkeypatch):
    model = OnDevice()
    model.device = device = device_of(monkeypatch, clock, model)
    with autoprofile(1000, clock) as monitor:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
        assert device.synchronizations == 1, "where its timeline and the clock are told to be the same"
        device.launch(500)
        clock.advance(100)
    [record] = monitor.records
    assert record["t_forward"] == 30
    assert record["wall_sec"] == 30


def test_a_phase_that_was_open_when_the_device_was_found_is_whole(clock, monkeypatch):
    model = OnDevice()
    model.device = device = device_of(monkeypatch, clock, model)
    with autoprofile(1000, clock) as monitor, monitor.phase("epoch"):
        clock.advance(7)
        device.launch(2)
        model(torch.ones(1, 2)).sum().backward()
    [record] = monitor.records
    assert record["t_epoch"] == 7 + 2 + 10
    assert record["t_epoch/forward"] == record["t_forward"] == 10


def test_a_device_that_fails_takes_nothing_down(clock, monkeypatch):
    model = OnDevice()
    model.device = device_of(monkeypatch, clock, model)
    error = RuntimeError("device-side assert triggered")

    def fail(device=None):
        raise error

    with pytest.raises(RuntimeError) as caught, autoprofile(1000, clock) as monitor:
        model(torch.ones(1, 2)).sum().backward()
        monkeypatch.setattr(torch.cuda, "synchronize", fail)
        torch.cuda.synchronize()
    assert caught.value is error
    assert monitor.records == []


def test_the_device_of_an_optimizer_alone(clock, monkeypatch):
    device = SimulatedDevice(clock)
    device.install(monkeypatch)
    weight = nn.Parameter(torch.ones(1))
    monkeypatch.setattr(
        "mlvbench.autoprofile.observer.accelerator_of",
        lambda tensors: torch.device("cuda:0") if any(tensor is weight for tensor in tensors) else None,
    )
    with autoprofile(1000, clock) as monitor:
        weight.sum().backward()
        torch.optim.SGD([weight], lr=1).step()
    assert monitor.device == torch.device("cuda:0")


def test_which_devices_are_looked_for(monkeypatch):
    here, cuda = torch.ones(1), torch.empty(1, device="meta")
    assert accelerator_of([here, cuda]) is None
    monkeypatch.setattr("mlvbench.counting.device._is_usable", lambda kind: kind == "meta")
    assert accelerator_of([here, cuda]) == cuda.device


def test_phases_of_the_scripts_own_after_the_last_seam_are_in_the_wall_time(clock):
    model = Slow(clock, 1)
    with autoprofile(1, clock) as monitor:
        loop(model, DataLoader(Data(clock, 1), 1), optimizer_of(model))
        clock.advance(2)
        with monitor.phase("evaluate"):
            clock.advance(5)
        clock.advance(1)
    assert [record["wall_sec"] for record in monitor.records] == [5, 8]
    assert monitor.records[-1]["t_evaluate"] == 5


def test_tensors_of_a_device_that_is_not_here_change_nothing(clock):
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True), autoprofile(1000, clock) as monitor:
        nn.Identity()(torch.empty(1, 2, device="cuda"))
    assert monitor.device == torch.device("cpu")


def test_the_clock_is_the_only_source_of_time():
    clock = FakeClock()
    with autoprofile(1000, clock) as monitor:
        train(Vit(), steps=2)
    assert monitor.records[0]["wall_sec"] == 0


def test_nothing_reached_is_no_record():
    with autoprofile() as monitor:
        pass
    assert monitor.records == []


def test_the_iterator_keeps_its_type():
    with autoprofile():
        assert type(iter(DataLoader([1]))).__mro__[1] is _BaseDataLoaderIter
