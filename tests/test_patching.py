"""`instrument`: finds the attribute, times it, and leaves no trace."""

import copy
import functools
import gc
import inspect
import pickle
import threading
import types
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mlvbench.monitoring import ThroughputMonitor, recorder_of


class Base:
    def inherited(self, seconds):
        self.clock.advance(seconds)
        return type(self)


class Target(Base):
    """Has an attribute of each kind."""

    def __init__(self, clock=None):
        self.clock = clock
        self.lambda_ = lambda seconds: self.clock.advance(seconds)
        self.object_ = functools.partial(self.method, 5)
        self.bound = self.method

    def method(self, seconds):
        """Says something."""
        self.clock.advance(seconds)
        return self

    @classmethod
    def class_method(cls, clock):
        clock.advance(4)
        return cls

    @staticmethod
    def static_method(clock):
        clock.advance(3)
        return clock

    partial_method = functools.partialmethod(method, 6)

    def __call__(self, seconds):
        return self.method(seconds)

    @property
    def made_anew(self):
        return lambda: None


class Child(Target):
    """Has nothing of its own."""


def all_vars(*targets):
    return [dict(vars(target)) for target in targets]


CALLS = {
    "method": lambda target: target.method(1),
    "inherited": lambda target: target.inherited(2),
    "class_method": lambda target: target.class_method(target.clock),
    "static_method": lambda target: target.static_method(target.clock),
    "lambda_": lambda target: target.lambda_(7),
    "object_": lambda target: target.object_(),
    "bound": lambda target: target.bound(8),
    "partial_method": lambda target: target.partial_method(),
    "__call__": lambda target: target(9),
}
SECONDS = dict(zip(CALLS, [1, 2, 4, 3, 7, 5, 8, 6, 9], strict=True))
ON_THE_CLASS = [name for name in CALLS if name not in ("lambda_", "object_", "bound")]


class TestEveryKindOfAttribute:
    @pytest.mark.parametrize("name", CALLS)
    def test_of_an_object(self, monitor, clock, timings, name):
        target, other = Target(clock), Target(clock)
        before, bare = all_vars(target, other, Target, Base), CALLS[name](target)
        handle = monitor.instrument(target, {"x": name})
        assert CALLS[name](target) == bare
        CALLS[name](other)
        assert timings() == {"x": SECONDS[name]}, "the other object is not timed"
        handle.remove()
        assert all_vars(target, other, Target, Base) == before
        CALLS[name](target)
        assert timings() == {}

    @pytest.mark.parametrize("cls", [Target, Child])
    @pytest.mark.parametrize("name", ON_THE_CLASS)
    def test_of_a_class_own_or_inherited(self, monitor, clock, timings, name, cls):
        target, before = cls(clock), all_vars(Child, Target, Base)
        bare = CALLS[name](target)
        kind = type(inspect.getattr_static(cls, name))
        with monitor.instrument(cls, {"x": name}):
            assert CALLS[name](target) == bare
            assert CALLS[name](cls(clock)) is not None
            if cls is Child:
                CALLS[name](Target(clock))
            if kind in (staticmethod, classmethod):
                assert type(vars(cls)[name]) is kind
        assert timings() == {"x": 2 * SECONDS[name]}
        assert all_vars(Child, Target, Base) == before

    def test_of_a_python_module(self, monitor, clock, timings):
        module = types.ModuleType("made")
        module.function = lambda seconds: clock.advance(seconds)
        module.object_ = functools.partial(clock.advance, 4)
        before = dict(vars(module))
        with monitor.instrument(module, {"function": "function", "object": "object_"}):
            module.function(3)
            module.object_()
        assert timings() == {"function": 3, "object": 4}
        assert dict(vars(module)) == before

    def test_of_an_optimizer(self, monitor, timings):
        parameter = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        with monitor.instrument(optimizer, {"optimizer": "step"}):
            parameter.grad = torch.ones(1)
            optimizer.step()
        assert parameter.item() == 0.5
        assert timings().keys() == {"optimizer"}

    def test_modules_mean_their_forward(self, monitor, timings):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
                self.loss_fn = nn.CrossEntropyLoss()

            def forward(self, x, y):
                return self.loss_fn(self.body(x), y)

        net = Net()
        paths = {"body": "body", "first": "body.0", "last": "body.2.forward", "loss": "loss_fn"}
        with monitor.instrument(net, paths):
            net(torch.ones(1, 2), torch.tensor([1]))
            net.body[0](torch.ones(1, 2))
        found = timings()
        assert list(found) == ["body", "first", "last", "loss", "body/first", "body/last"]
        assert recorder_of(monitor).counters.read().phases["first",][1] == 1, "called outside of the body"

    def test_a_class_means_its_init_and_stays_a_class(self, monitor, clock, timings):
        module = types.ModuleType("made")
        module.Target = Target
        with monitor.instrument(module, {"build": "Target"}):
            target = module.Target(clock)
            assert module.Target is Target
            assert pickle.loads(pickle.dumps(Base())).__class__ is Base
        assert isinstance(target, Target)
        assert timings() == {"build": 0}

    def test_a_class_without_an_init_is_refused(self, monitor):
        module = types.ModuleType("made")

        class Named(str):
            __slots__ = ()

            def __new__(cls, name):
                return super().__new__(cls, name)

        module.Named = Named
        with pytest.raises(TypeError, match="'Named' of made must be a method or function that can be replaced"):
            monitor.instrument(module, {"build": "Named"})
        assert module.Named("x") == "x"

    def test_several_paths_share_a_phase(self, monitor, clock, timings):
        target = Target(clock)
        with monitor.instrument(target, {"x": ["method", "inherited"], "y": ("class_method",)}):
            target.method(1)
            target.inherited(2)
            target.class_method(clock)
        assert timings() == {"x": 3, "y": 4}

    def test_many_objects_of_one_class_each_have_their_own_phase(self, monitor, clock, timings):
        targets = [Target(clock) for _ in range(20)]
        handles = [monitor.instrument(target, {f"x{i}": "method"}) for i, target in enumerate(targets)]
        for i, target in enumerate(targets):
            target.method(i)
        assert timings() == {f"x{i}": i for i in range(20)}
        for handle in handles:
            handle.remove()
        assert not hasattr(Target.method, "__wrapped__")

    def test_coroutines_and_generators(self, monitor, clock, timings):
        class Loader:
            async def fetch(self):
                clock.advance(1)
                return self

            def load(self):
                clock.advance(2)
                yield self

        loader = Loader()
        with monitor.instrument(loader, {"fetch": "fetch", "load": "load"}):
            assert inspect.iscoroutinefunction(loader.fetch)
            assert inspect.isgeneratorfunction(Loader.load)
            coroutine = loader.fetch()
            with pytest.raises(StopIteration) as end:
                coroutine.send(None)
            assert end.value.value is loader
            assert list(loader.load()) == [loader]
        assert timings() == {"fetch": 1, "load": 2}

    def test_what_a_method_is_called_with_and_looks_like_stays(self, monitor):
        target = Target()
        bare = inspect.signature(target.method)
        with monitor.instrument(target, {"x": "method"}):
            assert inspect.signature(target.method) == bare
            assert target.method.__name__ == "method"
            assert target.method.__doc__ == "Says something."
            assert target.method.__self__ is target
            with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'seconds'"):
                target.method()
            with pytest.raises(TypeError, match=r"missing"):
                Target.method()
        with monitor.instrument(Child, {"x": "inherited"}), pytest.raises(TypeError, match="missing"):
            Child.inherited()

    def test_a_cached_method_keeps_its_cache(self, monitor, timings):
        class A:
            @functools.lru_cache  # noqa: B019
            def cached(self, x):
                return self, x

        class B(A):
            """Has nothing of its own."""

        b = B()
        for target in (A, B, b):
            with monitor.instrument(target, {"x": "cached"}):
                assert b.cached(1) == (b, 1)
                assert b.cached.cache_info().hits >= 0
        assert A.cached.cache_info().hits == 2
        assert recorder_of(monitor).counters.read().phases["x",][1] == 3

    def test_an_object_that_changes_its_class_keeps_its_phase(self, monitor):
        net = nn.Sequential(nn.LazyLinear(2))
        with monitor.instrument(net, {"first": "0"}):
            for _ in range(3):
                net(torch.ones(1, 2))
        assert type(net[0]) is nn.Linear
        assert recorder_of(monitor).counters.read().phases["first",][1] == 3

    def test_a_phase_that_fails_to_begin_or_end_leaves_no_other_open(self, monitor, clock, timings, monkeypatch):
        target = Target(clock)
        with monitor.instrument(target, {"x": "method"}), monitor.instrument(target, {"y": "method"}):
            reading = type(clock).__call__
            for failing in (2, 3, 4):
                left = failing

                def interrupted(self):
                    nonlocal left
                    left -= 1
                    if left == 0:
                        raise KeyboardInterrupt
                    return reading(self)

                monkeypatch.setattr(type(clock), "__call__", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    target.method(1)
                monkeypatch.undo()
            timings()
            target.method(1)
        assert timings() == {"x": 1, "y": 1, "x/y": 1}

    def test_objects_without_a_dict_have_methods_too(self, monitor, clock, timings):
        class Slotted:
            __slots__ = ()

            def method(self):
                clock.advance(1)

        target = Slotted()
        with monitor.instrument(target, {"x": "method"}):
            target.method()
            Slotted().method()
        assert timings() == {"x": 1}


class TestErrors:
    def test_nothing_is_patched_by_a_call_that_is_refused(self, monitor, clock, timings):
        target = Target(clock)
        before = all_vars(target, Target, Base)
        for paths in (
            {"x": "method", "y": "nowhere"},
            {"x": ["method", "clock.now"]},
            {"x": "method", "y": "made_anew"},
        ):
            with pytest.raises((AttributeError, TypeError)):
                monitor.instrument(target, paths)
        assert all_vars(target, Target, Base) == before
        target.method(1)
        assert timings() == {}

    def test_nothing_is_patched_where_putting_fails_half_way(self, monitor, clock):
        class Guarded(type):
            def __setattr__(cls, name, value):
                if name == "second":
                    raise PermissionError(name)
                super().__setattr__(name, value)

        class Odd(metaclass=Guarded):
            def first(self):
                """Can be replaced."""

            def second(self):
                """Cannot."""

        before = dict(vars(Odd))
        with pytest.raises(PermissionError):
            monitor.instrument(Odd(), {"x": "first", "y": "second"})
        assert dict(vars(Odd)) == before

    def test_a_path_inside_the_target_says_where_it_ends(self, monitor):
        net = nn.Sequential(nn.Linear(1, 1))
        with pytest.raises(AttributeError, match=r"Sequential has no attribute '0.weigt'.*Linear.*'weight'"):
            monitor.instrument(net, {"x": "0.weigt"})
        with pytest.raises(AttributeError, match=r"Sequential has no attribute '3'"):
            monitor.instrument(net, {"x": "3"})


class TestTwice:
    def test_again_for_the_same_phase_adds_no_layer(self, monitor, clock):
        target, before = Target(clock), all_vars(Target)
        handles = [monitor.instrument(target, {"x": "method"}) for _ in range(3)]
        readings = clock.readings
        target.method(2)
        assert clock.readings == readings + 2
        monitor.record_samples(1)
        snapshot = monitor.snapshot(1)
        assert (snapshot["t_x"], snapshot["samples_per_sec"]) == (2, 0.5)
        assert not hasattr(target.method.__wrapped__, "__wrapped__")
        for handle in handles[:2]:
            handle.remove()
            handle.remove()
        target.method(2)
        assert monitor.snapshot(2)["t_x"] == 2, "one handle is left"
        handles[2].remove()
        assert all_vars(Target) == before

    def test_for_another_phase_both_are_timed(self, monitor, clock, timings):
        target = Target(clock)
        with monitor.instrument(target, {"x": "method"}), monitor.instrument(Target, {"y": "method"}):
            target.method(2)
            Target(clock).method(3)
        assert timings() == {"x": 2, "y": 5, "x/y": 2}

    def test_by_two_monitors_both_count(self, monitor, clock, timings):
        other = ThroughputMonitor("cpu", 1, clock)
        target = Target(clock)
        with monitor.instrument(target, {"x": "method"}), other.instrument(target, {"x": "method"}):
            target.method(2)
        assert timings() == {"x": 2}
        assert other.snapshot(1)["t_x"] == 2

    def test_a_base_class_instrumented_after_its_subclass_is_timed_too(self, monitor, clock, timings):
        with monitor.instrument(Child, {"child": "method"}), monitor.instrument(Target, {"target": "method"}):
            Child(clock).method(2)
            Target(clock).method(3)
        assert timings() == {"child": 2, "target": 5, "child/target": 2}

    def test_a_base_class_patched_later_by_others_is_reached(self, monitor, clock, timings, monkeypatch):
        target = Child(clock)
        with monitor.instrument(target, {"x": "inherited"}):
            monkeypatch.setattr(Base, "inherited", lambda self, seconds: ("patched", seconds))
            assert target.inherited(2) == ("patched", 2)


class Foreign:
    """Patches as other libraries do: keeps what it finds, puts a wrapper, and puts back what it kept."""

    def __init__(self, owner):
        self.owner = owner
        self.kept = vars(owner).get("method")
        found = owner.method

        @functools.wraps(found)
        def wrapper(*args):
            return found(*args)

        self.wrapper = wrapper
        setattr(owner, "method", wrapper)  # noqa: B010

    def remove(self):
        if self.kept is None:
            del self.owner.method
        else:
            self.owner.method = self.kept


@st.composite
def overlapping(draw):
    """Two to five instrumentations of one method, from several sides, and the order in which they go."""
    ways = st.tuples(st.sampled_from(["object", "class", "child object", "child class"]), st.sampled_from("xyz"))
    chosen = draw(st.lists(ways, min_size=2, max_size=5))
    return chosen, draw(st.permutations(range(len(chosen)))), draw(st.lists(st.integers(0, 4), max_size=3))


class TestRemoving:
    @settings(max_examples=300)
    @given(overlapping())
    def test_in_any_order_leaves_no_trace(self, plan):
        ways, order, twice = plan
        monitor = ThroughputMonitor("cpu", 1)
        target, child = (cls(lambda: None) for cls in (Target, Child))
        target.clock = child.clock = types.SimpleNamespace(advance=lambda seconds: None)
        sides = {"object": target, "class": Target, "child object": child, "child class": Child}
        before = all_vars(target, child, Target, Child, Base)
        handles = [monitor.instrument(sides[side], {phase: "method"}) for side, phase in ways]
        for position, index in enumerate(order):
            handles[index].remove()
            if position in twice:
                handles[index].remove()
            left = {ways[other] for other in order[position + 1 :]}
            assert target.method(0) is target
            assert child.method(0) is child
            expected = {f"t_{phase}" for side, phase in left}
            snapshot = monitor.snapshot(0)
            assert {key for key in snapshot if key.startswith("t_") and "/" not in key} == expected
        assert all_vars(target, child, Target, Child, Base) == before

    @pytest.mark.parametrize("on_class", [True, False])
    def test_with_anothers_patch_on_top_leaves_theirs(self, monitor, clock, timings, on_class):
        target = Target(clock)
        owner = Target if on_class else target
        before = all_vars(target, Target)
        ours = monitor.instrument(owner, {"x": "method"})
        theirs = Foreign(owner)
        ours.remove()
        assert vars(owner)["method"] is theirs.wrapper
        target.method(1)
        assert timings() == {}
        theirs.remove()
        ours.remove()
        assert all_vars(target, Target) == before

    @settings(max_examples=200)
    @given(st.integers(0, 3), st.integers(1, 3), st.permutations(range(7)))
    def test_with_anothers_patch_anywhere_and_in_any_order_leaves_no_trace(self, under, over, order):
        monitor, target = ThroughputMonitor("cpu", 1), Target()
        target.clock = types.SimpleNamespace(advance=lambda seconds: None)
        before = all_vars(target, Target)
        handles = [monitor.instrument(Target, {f"under {index}": "method"}) for index in range(under)]
        handles.append(Foreign(Target))
        handles += [monitor.instrument(target, {f"over {index}": "method"}) for index in range(over)]
        for index in order:
            if index < len(handles):
                handles[index].remove()
                assert target.method(0) is target
        for handle in handles:
            if not isinstance(handle, Foreign):
                handle.remove()
        assert all_vars(target, Target) == before

    def test_threads_that_instrument_one_class_lose_nothing(self, monitor):
        before = all_vars(Target)

        def work():
            target = Target()
            target.clock = types.SimpleNamespace(advance=lambda seconds: None)
            for _ in range(50):
                with monitor.instrument(target, {"x": "method"}):
                    target.method(0)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        gc.collect()
        assert all_vars(Target) == before
        assert recorder_of(monitor).counters.read().phases["x",][1] == 400

    def test_over_and_under_anothers_patch_it_still_counts_once(self, monitor, clock):
        target, before = Target(clock), all_vars(Target)
        under = monitor.instrument(target, {"x": "method"})
        theirs = Foreign(Target)
        over = monitor.instrument(target, {"x": "method"})
        target.method(2)
        monitor.record_samples(1)
        snapshot = monitor.snapshot(1)
        assert (snapshot["t_x"], snapshot["samples_per_sec"]) == (2, 0.5)
        over.remove()
        theirs.remove()
        under.remove()
        assert all_vars(Target) == before

    def test_what_is_taken_out_before_works_afterwards(self, monitor, clock, timings):
        target = Target(clock)
        with monitor.instrument(target, {"x": "method"}):
            taken = target.method
        assert taken(1) is target
        assert timings() == {}


class TestOwnership:
    def test_an_object_is_freed_at_once_and_its_class_restored(self, monitor, clock, timings):
        before = all_vars(Target)
        target = Target(clock)
        target.bound = target.object_ = None
        handle = monitor.instrument(target, {"x": ["method", "static_method"]})
        target.method(1)
        freed = weakref.ref(target)
        gc.disable()
        try:
            target.lambda_ = None
            del target
            assert freed() is None, "no cycle keeps it until a collection"
        finally:
            gc.enable()
        assert all_vars(Target) == before
        handle.remove()
        assert timings() == {"x": 1}

    def test_a_handle_kept_on_a_model_is_copied_without_effect(self, monitor, clock, timings):
        target = Target(clock)
        target.bound = target.lambda_ = target.object_ = None
        target.handle = monitor.instrument(target, {"x": "method"})
        copy.deepcopy(target).handle.remove()
        target.clock = None
        pickle.loads(pickle.dumps(target)).handle.remove()
        target.clock = clock
        target.method(1)
        assert timings() == {"x": 1}
        target.handle.remove()

    def test_a_thousand_models_leave_nothing(self, monitor):
        before = all_vars(Target)
        for _ in range(1000):
            monitor.instrument(Target(), {"x": "method"})
        gc.collect()
        assert all_vars(Target) == before

    def test_copies_and_replicas_are_plain_and_work_on_themselves(self, monitor, clock, timings):
        target = Target(clock)
        with monitor.instrument(target, {"x": "method"}):
            replica = Target.__new__(Target)
            vars(replica).update(vars(target))
            for other in (copy.copy(target), replica):
                assert other.method(1) is other
        assert timings() == {}
        assert vars(replica).keys() == vars(target).keys()

    def test_what_an_object_holds_is_plain_in_its_copies(self, monitor, clock, timings):
        class Holder:
            def __init__(self):
                self.scale = 2
                self.power = functools.partial(pow, 2)
                self.own = self.method
                self.length = len

            def method(self):
                return self.scale

        holder = Holder()
        with monitor.instrument(holder, {"power": "power", "own": "own", "length": "length"}):
            assert (holder.power(3), holder.own(), holder.length("ab")) == (8, 2, 2)
            clone = copy.deepcopy(holder)
            clone.scale = 5
            assert (clone.power(3), clone.own(), clone.length("ab")) == (8, 5, 2)
            assert type(clone.power) is functools.partial
            assert clone.length is len
        assert timings() == {"power": 0, "own": 0, "length": 0}
        assert recorder_of(monitor).counters.read().phases["own",][1] == 1
