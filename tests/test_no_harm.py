"""What PyTorch does with an instrumented model, it does as with the bare one."""

import copy
import functools
import io
import os
import pickle
import subprocess
import sys
import textwrap
import types
import warnings
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint
from vit import Vit, batch, train

from mlvbench.monitoring import ThroughputMonitor, recorder_of

PATHS = {"features": "forward_features", "attention": ["blocks.0.attention", "blocks.1.attention"], "loss": "loss_fn"}
ON_CLASS = {"features": "forward_features"}


def new_model():
    torch.manual_seed(0)
    return Vit()


@pytest.fixture(params=["on the instance", "on the class"])
def model(request, monitor):
    model = new_model()
    target, paths = (model, PATHS) if request.param == "on the instance" else (Vit, ON_CLASS)
    with monitor.instrument(target, paths):
        yield model


class TestTheModelItself:
    def test_state_parameters_and_modes(self, model):
        bare = new_model()
        assert list(model.state_dict()) == list(bare.state_dict())
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in bare.named_parameters()]
        assert [name for name, _ in model.named_modules()] == [name for name, _ in bare.named_modules()]
        assert repr(model) == repr(bare)
        assert vars(model).keys() == vars(bare).keys()
        model.eval()
        assert not model.blocks[0].training
        model.train().to(torch.float64)
        assert model(batch()[0].double()).dtype == torch.float64
        model.load_state_dict(bare.state_dict())

    def test_losses_of_fifty_steps_are_bit_for_bit_those_of_the_bare_run(self, model, timings):
        assert train(model) == train(new_model())
        assert timings()["features"] == 0

    def test_the_whole_loop_monitored_gives_the_same_losses(self, monitor):
        def program(wrap, phase, record):
            torch.manual_seed(1)
            model = new_model()
            loader = torch.utils.data.DataLoader(torch.randn(64, 1, 4, 4), batch_size=4, shuffle=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            losses = []
            for _ in range(4):
                for image in wrap(loader):
                    with phase("forward"):
                        loss = model(image).square().mean()
                    with phase("backward"):
                        optimizer.zero_grad()
                        loss.backward()
                    optimizer.step()
                    record(len(image))
                    losses.append(loss.item())
            return losses

        bare = program(lambda loader: loader, lambda name: warnings.catch_warnings(), lambda count: None)
        assert program(monitor.iterate, monitor.phase, monitor.record_samples) == bare


class TestCopies:
    def test_a_deep_copy_uses_its_own_weights_and_is_not_instrumented(self, model, monitor, timings):
        clone = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in clone.parameters():
                parameter.zero_()
        image = batch()[0]
        assert torch.equal(clone(image), torch.zeros(4, 3))
        assert not torch.equal(model(image), torch.zeros(4, 3))
        on_the_class = recorder_of(monitor).counters.read().phases.keys() == {("features",)}
        assert recorder_of(monitor).counters.read().phases["features",][1] == (2 if on_the_class else 1)

    def test_only_the_instrumented_model_is_timed(self, monitor, timings):
        model = new_model()
        with monitor.instrument(model, PATHS):
            image, label = batch()
            for other in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
                other.loss_fn(other(image), label)
        # The shallow copy shares its modules with the model, and they are instrumented.
        assert set(timings()) == {"attention", "loss"}

    def test_a_shallow_copy_with_another_module_uses_it(self, model):
        image = batch()[0]
        clone = copy.copy(model)
        clone._modules = dict(model._modules)
        clone.patch = nn.Conv2d(1, 8, 2, 2)
        assert not torch.equal(clone.forward_features(image), model.forward_features(image))

    def test_a_data_parallel_replica_uses_its_own_weights(self, model):
        replica = model._replicate_for_data_parallel()
        assert replica.forward_features.__self__ is replica

    def test_saved_it_loads_where_mlvbench_was_never_imported(self, model, tmp_path):
        path = tmp_path / "model.pt"
        torch.save(model, path)
        image = torch.ones(1, 1, 4, 4)
        program = textwrap.dedent("""
            import sys, torch
            class Forbidden:
                def find_spec(self, name, *rest):
                    assert not name.startswith("mlvbench"), name
            sys.meta_path.insert(0, Forbidden())
            model = torch.load(sys.argv[1], weights_only=False)
            print(model(torch.ones(1, 1, 4, 4)).tolist())
        """)
        run = subprocess.run(
            [sys.executable, "-c", program, path],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() == str(model(image).tolist())

    def test_a_state_dict_loads_with_weights_only(self, model):
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        new_model().load_state_dict(torch.load(file, weights_only=True))


class TestTransforms:
    @pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's vmap, of attention
    def test_functional_call_grad_and_vmap_use_the_weights_handed_in(self, model):
        bare, image = new_model(), batch()[0]
        weights = {name: 0.5 * value.detach() for name, value in bare.named_parameters()}

        def loss(net, weights, image):
            return functional_call(net, weights, (image,)).square().sum()

        assert torch.equal(loss(model, weights, image), loss(bare, weights, image))
        ours = grad(functools.partial(loss, model))(weights, image)
        theirs = grad(functools.partial(loss, bare))(weights, image)
        assert all(torch.equal(ours[name], theirs[name]) for name in weights)
        single = image.unsqueeze(1)
        per_sample = vmap(lambda x: functional_call(model, weights, (x,)))(single)
        assert torch.allclose(per_sample.squeeze(1), functional_call(bare, weights, (image,)), atol=1e-5)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
    def test_trace_and_export(self, model):
        bare, image = new_model().eval(), batch()[0]
        model.eval()
        with torch.no_grad():  # with gradients, attention does not trace the same way twice
            traced = torch.jit.trace(model, image)
        assert torch.allclose(traced(image), bare(image))
        exported = torch.export.export(model, (image,))
        assert torch.allclose(exported.module()(image), bare(image))

    def test_symbolic_trace(self, model, monitor):
        graph = torch.fx.symbolic_trace(model.blocks[0].mlp)
        x = torch.ones(1, 8)
        assert torch.equal(graph(x), model.blocks[0].mlp(x))

    def test_a_module_whose_class_is_swapped(self, model, timings):
        model.__class__ = type("Sharded", (Vit,), {})
        nn.utils.parametrizations.weight_norm(model.head)
        model(batch()[0])
        assert "features" in timings()


class TestCompile:
    @pytest.fixture(autouse=True)
    def fresh_dynamo(self):
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    @staticmethod
    def compiled(model, counter=None):
        return torch.compile(model, fullgraph=True, backend=counter or "eager")

    @pytest.mark.filterwarnings("ignore:phase .* compiled:RuntimeWarning")
    def test_the_graphs_are_the_same(self, monitor):
        image = batch()[0]
        bare = torch._dynamo.explain(new_model())(image)
        for target in ("instance", "class"):
            torch._dynamo.reset()
            model = new_model()
            with monitor.instrument(*((model, PATHS) if target == "instance" else (Vit, ON_CLASS))):
                ours = torch._dynamo.explain(model)(image)
                assert (ours.graph_count, ours.graph_break_count) == (bare.graph_count, bare.graph_break_count)
                assert [len(graph.graph.nodes) for graph in ours.graphs] == [
                    len(graph.graph.nodes) for graph in bare.graphs
                ]
        assert (bare.graph_count, bare.graph_break_count) == (1, 0)

    @pytest.mark.filterwarnings("ignore:phase .* compiled:RuntimeWarning")
    def test_compiled_after_it_was_instrumented(self, model):
        counter = torch._dynamo.testing.CompileCounter()
        compiled, image = self.compiled(model, counter), batch()[0]
        assert torch.equal(compiled(image), new_model()(image))
        compiled(image)
        assert counter.frame_count == 1

    @pytest.mark.filterwarnings("ignore:phase .* compiled:RuntimeWarning")
    @pytest.mark.parametrize("on_class", [True, False])
    def test_compiled_before_it_was_instrumented(self, monitor, on_class):
        model, image = new_model(), batch()[0]
        counter = torch._dynamo.testing.CompileCounter()
        compiled = self.compiled(model, counter)
        expected = compiled(image)
        handle = monitor.instrument(Vit if on_class else model, ON_CLASS if on_class else PATHS)
        for _ in range(3):
            assert torch.equal(compiled(image), expected)
        handle.remove()
        assert torch.equal(compiled(image), expected)
        assert counter.frame_count <= 2

    @pytest.mark.filterwarnings("ignore:phase .* compiled:RuntimeWarning")
    def test_an_inherited_method_compiles(self, monitor):
        class Child(Vit):
            """Has nothing of its own."""

        model = Child()
        with monitor.instrument(Child, ON_CLASS):
            image = batch()[0]
            assert torch.equal(self.compiled(model)(image), model(image))

    @pytest.mark.filterwarnings("ignore:phase .* compiled:RuntimeWarning")
    def test_what_an_object_holds_compiles(self, monitor):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.double = functools.partial(torch.mul, 2)

            def forward(self, x):
                return self.double(x)

        net = Net()
        with monitor.instrument(net, {"double": "double"}):
            assert self.compiled(net)(torch.ones(1)) == 2

    @pytest.mark.filterwarnings("ignore:.* compiled by:RuntimeWarning")
    def test_phases_timed_functions_and_items_leave_a_region_one_graph(self, monitor):
        @monitor.timed("helper")
        def helper(x):
            return x + 1

        @monitor.timed("generate")
        def generate(x):
            yield x
            yield x * 2

        def program(x):
            with monitor.phase("outer"), monitor.phase("inner"):
                x = helper(x)
            monitor.record_samples(4)
            monitor.step(1)
            for item in monitor.iterate([1, 2]):
                x = x * item
            for item in generate(x):
                x = x + item
            return x

        explained = torch._dynamo.explain(program)(torch.ones(2))
        assert (explained.graph_count, explained.graph_break_count) == (1, 0)
        counter = torch._dynamo.testing.CompileCounter()
        compiled = self.compiled(program, counter)
        expected = program(torch.ones(2))
        for _ in range(3):
            assert torch.equal(compiled(torch.ones(2)), expected)
            with monitor.phase("another"), monitor.phase("inner"):
                pass
            monitor.snapshot(1)
        assert counter.frame_count == 1, "what the monitor counts must not make it compile again"

    @pytest.mark.filterwarnings("ignore:.* compiled by:RuntimeWarning")
    @pytest.mark.parametrize("kind", ["class", "every object", "one object", "decorated"])
    def test_blocks_that_are_compiled_one_by_one_share_their_graphs(self, monitor, kind):
        def count_graphs(kind):
            class Layer(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.linear = nn.Linear(4, 4)

                def attend(self, x):
                    return self.linear(x)

                if kind == "decorated":
                    attend = monitor.timed("attention")(attend)

                def forward(self, x):
                    return self.attend(x).relu()

            torch._dynamo.reset()
            layers = [Layer() for _ in range(12)]
            targets = {"class": [Layer], "every object": layers, "one object": layers[:1]}.get(kind, [])
            handles = [monitor.instrument(target, {"attention": "attend"}) for target in targets]
            counter, x = torch._dynamo.testing.CompileCounter(), torch.ones(2, 4)
            for layer in layers:
                layer.compile(backend=counter)
            for layer in layers * 2:
                layer(x)
            for handle in handles:
                handle.remove()
            return counter.frame_count

        assert count_graphs(kind) == count_graphs("none") <= 2

    def test_where_warnings_are_errors_it_is_still_said_and_compiles(self, monitor):
        model = new_model()
        with monitor.instrument(model, ON_CLASS), warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("error", message="phase")
            self.compiled(model)(batch()[0])
        assert "phase 'features'" in [str(warning.message)[:16] for warning in caught]

    @pytest.mark.filterwarnings("ignore:.* compiled by:RuntimeWarning")
    def test_snapshots_and_resets_leave_a_region_one_graph(self, monitor):
        def program(x):
            monitor.reset()
            monitor.snapshot(1)
            return x + 1

        assert self.compiled(program)(torch.ones(1)) == 2
        assert monitor.records == []

    @pytest.mark.filterwarnings("ignore:.* compiled by:RuntimeWarning")
    def test_a_method_of_an_object_that_is_no_module_compiles(self, monitor):
        class Scale:
            def scale(self, x):
                return x * 2

        scale = Scale()
        with monitor.instrument(scale, {"scale": "scale"}):
            assert self.compiled(lambda x: scale.scale(x))(torch.ones(1)) == 2

    @pytest.mark.filterwarnings("ignore:.* compiled by:RuntimeWarning")
    def test_a_view_made_outside_is_iterated_over_inside(self, monitor):
        def program(items):
            total = torch.zeros(1)
            for item in items:
                total = total + item
            return total

        items = [torch.ones(1), torch.ones(1)]
        assert self.compiled(program)(monitor.iterate(items)) == 2

    def test_a_compiled_model_is_timed_as_a_whole(self, monitor, timings):
        compiled = self.compiled(new_model())
        with monitor.phase("forward"):
            compiled(batch()[0])
        assert timings() == {"forward": 0}

    def test_what_cannot_be_timed_is_said_once_for_each_name(self, monitor):
        model = new_model()

        def program(image):
            with monitor.phase("whole"):
                return model(image)

        with monitor.instrument(model, PATHS), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                self.compiled(program)(batch()[0])
                torch._dynamo.reset()
        said = [str(warning.message) for warning in caught if str(warning.message).startswith("phase ")]
        assert sorted(text.split("'")[1] for text in said) == ["attention", "features", "whole"]
        assert all("compiled by torch.compile" in text for text in said)

    def test_a_disabled_monitor_says_nothing(self):
        monitor = ThroughputMonitor("cpu", None)

        def program(x):
            with monitor.phase("whole"):
                for item in monitor.iterate([1]):
                    x = x + item
            monitor.record_samples(1)
            monitor.step(1)
            return x

        assert self.compiled(program)(torch.ones(1)) == 2


class TestOptimizersAndRebinding:
    def test_a_scheduler_made_after_instrumenting_keeps_the_phase_and_does_not_complain(self, monitor, timings):
        parameter = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        with monitor.instrument(optimizer, {"optimizer": "step"}):
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            for _ in range(2):
                parameter.grad = torch.ones(1)
                optimizer.step()
                scheduler.step()
            assert timings() == {"optimizer": 0}
            assert recorder_of(monitor).counters.read().phases["optimizer",][1] == 2
        optimizer.step()
        assert timings() == {}

    def test_a_scheduler_made_before_keeps_the_phase_too(self, monitor, timings):
        parameter = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        before = dict(vars(optimizer))
        with monitor.instrument(optimizer, {"optimizer": "step"}):
            parameter.grad = torch.ones(1)
            optimizer.step()
            scheduler.step()
            torch.optim.lr_scheduler.StepLR(optimizer, 1)
        assert timings() == {"optimizer": 0}
        assert vars(optimizer)["step"] is before["step"]

    def test_optimizers_are_copied_and_saved(self, monitor):
        parameter = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        with monitor.instrument(optimizer, {"optimizer": "step"}):
            clone = copy.deepcopy(optimizer)
            assert clone.param_groups[0]["params"][0] is not parameter
            pickle.loads(pickle.dumps(optimizer)).step()

    def test_rebinding_the_function_of_a_method_keeps_the_phase(self, monitor, timings):
        model, image = new_model(), batch()[0]
        with monitor.instrument(model, {"forward": "forward"}):

            def autocast(function):
                @functools.wraps(function)
                def wrapper(*args, **kwargs):
                    return function(*args, **kwargs)

                return wrapper

            # As Accelerate does when it prepares a model for mixed precision.
            model.forward = types.MethodType(autocast(model.forward.__func__), model)
            assert torch.equal(model(image), new_model()(image))
            assert timings() == {"forward": 0}
            assert recorder_of(monitor).counters.read().phases["forward",][1] == 1
            # And as it does to take that off again: walk to the bottom and bind what is there.
            bottom = model.forward
            while hasattr(bottom, "__wrapped__"):
                bottom = bottom.__wrapped__
            model.forward = types.MethodType(bottom, model)
            assert torch.equal(model(image), new_model()(image))
        assert torch.equal(model(image), new_model()(image))
        assert vars(model)["forward"].__func__ is bottom, "what others put there stays"


class TestCheckpointing:
    def test_a_recomputed_forward_is_time_of_backward(self, monitor, clock):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(2, 2, bias=False)

            def forward_features(self, x):
                clock.advance(2)
                return self.body(x)

        net, x = Net(), torch.ones(1, 2, requires_grad=True)
        with monitor.instrument(net, {"features": "forward_features"}):
            with monitor.phase("forward"):
                y = checkpoint(net.forward_features, x, use_reentrant=False).sum()
            with monitor.phase("backward"):
                y.backward()
                clock.advance(1)
            monitor.record_samples(10)
            snapshot = monitor.step(1)
        assert (snapshot["t_forward"], snapshot["t_backward"], snapshot["t_features"]) == (2, 3, 2)
        assert snapshot["samples_per_sec"] == 2.0
        with monitor.phase("forward"):
            clock.advance(1)
        assert monitor.snapshot(2)["t_forward"] == 1

    def test_what_a_recomputation_completes_is_nested_in_backward(self, monitor, clock):
        def features(x):
            clock.advance(2)
            return x * x

        timed, x = monitor.timed("features")(features), torch.ones(2, requires_grad=True)
        with monitor.phase("forward"):
            y = checkpoint(timed, x, use_reentrant=True).sum()
        with monitor.phase("backward"):
            y.backward()
        snapshot = monitor.snapshot(1)
        assert (snapshot["t_forward"], snapshot["t_backward"]) == (2, 2)
        assert (snapshot["t_forward/features"], snapshot["t_backward/features"]) == (2, 2)
        assert torch.equal(x.grad, torch.full((2,), 2.0))

    def test_gradients_are_those_of_the_bare_model(self, model):
        def gradients(net):
            torch.manual_seed(0)
            image, label = batch()
            features = checkpoint(net.forward_features, image, use_reentrant=False)
            net.loss_fn(net.head(features), label).backward()
            return [parameter.grad for parameter in net.parameters()]

        assert all(map(torch.equal, gradients(model), gradients(new_model())))
