"""`timed` and `iterate`: the wrapped thing behaves as the bare one does, and its time is accounted."""

import asyncio
import copy
import functools
import gc
import inspect
import itertools
import multiprocessing
import pickle
import types
import typing

import module_functions
import pytest
import torch
from fake_clock import TickingClock
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler
from tqdm import tqdm

from mlvbench.monitoring import ThroughputMonitor, recorder_of


class TestTimedFunctions:
    def test_a_function(self, monitor, clock, timings):
        @monitor.timed("forward")
        def forward(x, *, scale=1):
            clock.advance(3)
            return x * scale

        assert forward(2, scale=5) == 10
        assert timings() == {"forward": 3}

    def test_without_a_name_the_function_gives_it(self, monitor, timings):
        @monitor.timed
        def forward():
            return 1

        assert forward() == 1
        assert timings() == {"forward": 0}

    def test_methods_in_either_order_of_decorators(self, monitor, clock, timings):
        class A:
            @monitor.timed("plain")
            def plain(self, a, *, b=1):
                clock.advance(1)
                return type(self), a, b

            @classmethod
            @monitor.timed("inner class")
            def inner_class(cls, a):
                clock.advance(2)
                return cls, a

            @monitor.timed("outer class")
            @classmethod
            def outer_class(cls, a):
                clock.advance(4)
                return cls, a

            @staticmethod
            @monitor.timed("inner static")
            def inner_static(a):
                clock.advance(8)
                return a

            @monitor.timed("outer static")
            @staticmethod
            def outer_static(a):
                clock.advance(16)
                return a

        class B(A):
            pass

        assert A().plain(1, b=2) == (A, 1, 2)
        assert A.plain(B(), 3) == (B, 3, 1)
        assert (B.inner_class(5), B().outer_class(6)) == ((B, 5), (B, 6))
        assert (A.inner_static(7), B().inner_static(8), A.outer_static(9)) == (7, 8, 9)
        assert A.plain.__name__ == "plain"
        assert isinstance(vars(A)["outer_class"], classmethod)
        assert isinstance(vars(A)["outer_static"], staticmethod)
        assert timings() == {"plain": 2, "inner class": 2, "outer class": 4, "inner static": 16, "outer static": 16}

    def test_a_coroutine_counts_with_what_it_awaits(self, monitor, clock, timings):
        @monitor.timed("fetch")
        async def fetch():
            clock.advance(2)
            await asyncio.sleep(0)
            clock.advance(3)
            return 1

        assert asyncio.run(fetch()) == 1
        assert timings() == {"fetch": 5}

    def test_a_generator_counts_only_while_it_is_producing(self, monitor, clock, timings):
        @monitor.timed("load")
        def load():
            for item in range(3):
                clock.advance(2)
                yield item
            clock.advance(30)
            return "end"

        def loop():
            return (yield from load())

        got = []
        generator = loop()
        with pytest.raises(StopIteration) as end:
            while True:
                got.append(next(generator))
                clock.advance(100)
        assert got == [0, 1, 2]
        assert end.value.value == "end"
        assert timings() == {"load": 6}, "the last call, which finds nothing, is not counted"

    def test_a_generator_takes_what_is_sent_and_thrown_in(self, monitor, clock, timings):
        log = []

        @monitor.timed("talk")
        def talk():
            try:
                while True:
                    try:
                        log.append((yield len(log)))
                    except KeyError as error:
                        log.append(error)
                    clock.advance(1)
            finally:
                log.append("closed")

        generator = talk()
        error = KeyError("in")
        assert next(generator) == 0
        assert generator.send("sent") == 1
        assert generator.throw(error) == 2
        generator.close()
        assert log == ["sent", error, "closed"]
        assert timings() == {"talk": 2}

    def test_a_generator_that_is_dropped_is_closed_at_once(self, monitor):
        closed = []

        @monitor.timed("load")
        def load():
            try:
                yield 1
            finally:
                closed.append(True)

        for _ in load():
            break
        assert closed

    def test_an_async_generator_counts_only_while_it_is_producing(self, monitor, clock, timings):
        log = []

        @monitor.timed("load")
        async def load():
            try:
                for item in range(3):
                    clock.advance(2)
                    await asyncio.sleep(0)
                    try:
                        log.append((yield item))
                    except KeyError as error:
                        log.append(error)
            finally:
                log.append("closed")

        async def main():
            generator = load()
            got = [await anext(generator)]
            clock.advance(100)
            got.append(await generator.asend("sent"))
            got.append(await generator.athrow(KeyError("in")))
            await generator.aclose()
            return got + [item async for item in load()]

        assert asyncio.run(main()) == [0, 1, 2, 0, 1, 2]
        assert log[0] == "sent"
        assert isinstance(log[1], KeyError)
        assert log[2:] == ["closed", None, None, None, "closed"]
        assert timings() == {"load": 12}

    def test_kind_signature_and_names_stay(self, monitor):
        def plain(x: int, *rest: str, key: float = 1.0) -> bool:
            """Says something."""

        async def coroutine(x: int) -> bool:
            """Says something."""

        def generator(x: int) -> typing.Iterator[int]:
            """Says something."""
            yield 1

        async def async_generator(x: int) -> typing.AsyncIterator[int]:
            """Says something."""
            yield 1

        kinds = (
            inspect.isfunction,
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
        for bare in (plain, coroutine, generator, async_generator):
            timed = monitor.timed("x")(bare)
            assert [kind(timed) for kind in kinds] == [kind(bare) for kind in kinds]
            assert inspect.signature(timed) == inspect.signature(bare)
            assert typing.get_type_hints(timed) == typing.get_type_hints(bare)
            for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "__wrapped__"):
                assert getattr(timed, name) == (bare if name == "__wrapped__" else getattr(bare, name))

    def test_methods_of_every_kind_bind(self, monitor, clock, timings):
        class A:
            @monitor.timed("fetch")
            async def fetch(self, x):
                return self, x

            @monitor.timed("load")
            def load(self, count):
                yield from ((self, index) for index in range(count))

        a = A()
        assert inspect.iscoroutinefunction(a.fetch)
        assert inspect.isgeneratorfunction(a.load)
        assert asyncio.run(a.fetch(1)) == (a, 1)
        assert list(a.load(2)) == [(a, 0), (a, 1)]
        assert timings() == {"fetch": 0, "load": 0}

    def test_static_and_class_methods_of_every_kind(self, monitor, timings):
        class A:
            @staticmethod
            @monitor.timed("inner")
            async def fetch(x):
                return x

            @monitor.timed("outer")
            @classmethod
            def load(cls, count):
                yield from ((cls, index) for index in range(count))

        assert inspect.iscoroutinefunction(A.fetch)
        assert inspect.isgeneratorfunction(A.load)
        assert asyncio.run(A().fetch(1)) == 1
        assert list(A().load(2)) == [(A, 0), (A, 1)]
        assert timings().keys() == {"inner", "outer"}

    def test_wrong_arguments_are_an_error_at_the_call(self, monitor):
        @monitor.timed("x")
        async def coroutine(x):
            """Takes one argument."""

        @monitor.timed("x")
        def generator(x):
            yield x

        @monitor.timed("x")
        async def async_generator(x):
            yield x

        for function in (coroutine, generator, async_generator):
            with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
                function()

    def test_what_a_generator_function_returns_has_its_name(self, monitor):
        @monitor.timed("x")
        def load():
            yield

        assert inspect.isgenerator(load())
        assert load().__name__ == "load"
        assert "load" in repr(load())

    def test_other_callables_may_be_timed(self, monitor, clock, timings):
        half = monitor.timed("half")(functools.partial(pow, 2))
        assert half(5) == 32
        assert half.func is pow
        assert timings() == {"half": 0}

    def test_callables_that_bind_as_functions_do_bind(self, monitor, timings):
        class A:
            @monitor.timed("cached")
            @functools.lru_cache  # noqa: B019
            def cached(self, x):
                return self, x

            upper = monitor.timed("upper")(str.upper)

        a = A()
        assert a.cached(1) == (a, 1)
        assert a.cached(1) == (a, 1)
        assert A.cached.cache_info().hits == 1
        assert A.upper("x") == "X"
        assert timings().keys() == {"cached", "upper"}

    def test_a_bound_method_stays_bound_and_its_copies_are_plain(self, monitor, timings):
        class Scale:
            def __init__(self):
                self.factor = 2
                self.timed = monitor.timed("scale")(self.scale)

            def scale(self, x):
                return x * self.factor

        scale = Scale()

        class Other:
            method = scale.timed

        assert Other().method(3) == 6
        clone = copy.deepcopy(scale)
        clone.factor = 5
        assert (scale.timed(1), clone.timed(1)) == (2, 5)
        assert recorder_of(monitor).counters.read().phases["scale",][1] == 2

    def test_one_that_is_never_started_is_complained_about_once(self, monitor):
        @monitor.timed("fetch")
        async def fetch():
            """Is never awaited, or cancelled before it starts."""

        async def main():
            task = asyncio.create_task(fetch())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(main())
        gc.collect()
        with pytest.warns(RuntimeWarning, match="coroutine '.*fetch' was never awaited") as caught:
            fetch()
        assert len(caught) == 1

    def test_coroutines_inside_other_callables_count_with_what_they_await(self, monitor, clock, timings):
        async def fetch(x, y):
            clock.advance(2)
            await asyncio.sleep(0)
            clock.advance(3)
            return x, y

        class Fetcher:
            async def __call__(self):
                return await fetch(1, 2)

            async def method(self):
                return await fetch(1, 2)

        @types.coroutine
        def old_style():
            yield from fetch(1, 2).__await__()
            return 1, 2

        for bare in (functools.partial(fetch, 1, 2), Fetcher(), Fetcher().method):
            timed = monitor.timed("x")(bare)

            async def main(timed=timed):
                return await timed()

            assert asyncio.run(main()) == (1, 2)
            assert timings() == {"x": 5}

        async def await_old_style():
            return await monitor.timed("x")(old_style)()

        assert asyncio.run(await_old_style()) == (1, 2), "it is still awaitable, though only its creation is timed"

    def test_decorated_twice_it_counts_once(self, monitor, clock):
        @monitor.timed("work")
        @monitor.timed("work")
        def work():
            clock.advance(2)

        work()
        monitor.record_samples(4)
        snapshot = monitor.snapshot(1)
        assert (snapshot["t_work"], snapshot["samples_per_sec"]) == (2, 2.0)

    def test_an_error_passes_untouched(self, monitor, timings):
        error = LookupError()

        @monitor.timed("work")
        def work():
            raise error

        with pytest.raises(LookupError) as caught:
            work()
        assert caught.value is error
        assert timings() == {}

    @pytest.mark.parametrize("function", [module_functions.double, module_functions.produce, module_functions.fetch])
    def test_a_module_level_function_pickles_by_name(self, function):
        assert pickle.loads(pickle.dumps(function)) is function
        assert copy.deepcopy(function) is function
        assert copy.copy(function) is function

    def test_a_spawned_process_can_receive_it(self):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(module_functions.double, [1, 2]) == [2, 4]


class Stream(IterableDataset):
    def __init__(self, count=6):
        self.count = count

    def __iter__(self):
        yield from range(self.count)


def collate(items):
    return list(items)


def loaders():
    yield "list", lambda: [0, 1, 2]
    yield "range", lambda: range(4)
    yield "generator", lambda: iter_three()
    yield "tensor", lambda: torch.arange(4)
    yield "map-style", lambda: DataLoader(list(range(6)), batch_size=2)
    yield "iterable-style", lambda: DataLoader(Stream(), batch_size=4)
    yield "two workers", lambda: DataLoader(list(range(6)), batch_size=2, num_workers=2)
    yield "iterable-style worker", lambda: DataLoader(Stream(), batch_size=4, num_workers=1)


def iter_three():
    yield from (1, 2, 3)


every_loader = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in loaders()])


def as_lists(items):
    return [item.tolist() if isinstance(item, torch.Tensor) else item for item in items]


class TestIterate:
    @every_loader
    def test_items_and_passes_are_the_iterables_own(self, monitor, make):
        bare = make()
        bare_passes = [as_lists(bare), as_lists(bare)]
        view = monitor.iterate(make())
        assert [as_lists(view), as_lists(view)] == bare_passes

    @every_loader
    def test_length_is_the_iterables_own(self, monitor, make):
        bare, view = make(), monitor.iterate(make())
        try:
            length = len(bare)
        except TypeError as error:
            with pytest.raises(TypeError) as caught:
                len(view)
            assert str(caught.value) == str(error)
            length = None
        else:
            assert len(view) == length
        assert tqdm(view, disable=True).total == length

    @every_loader
    def test_next_and_then_a_for_goes_on_with_that_pass(self, monitor, make):
        whole = as_lists(make())
        view = monitor.iterate(make())
        first, second = as_lists([next(view), next(view)])
        assert [first, second, *as_lists(view)] == whole

    def test_after_that_pass_the_next_for_is_a_new_one(self, monitor):
        view = monitor.iterate([1, 2, 3])
        assert (next(view), list(view), list(view)) == (1, [2, 3], [1, 2, 3])
        assert next(view) == 1
        for _ in view:
            break
        assert list(view) == [1, 2, 3], "a for that was left is over, as the bare loader's would be"

    def test_next_ends_and_begins_again(self, monitor):
        view = monitor.iterate([1])
        assert next(view) == 1
        with pytest.raises(StopIteration):
            next(view)
        assert list(view) == [1]
        view = monitor.iterate(iter([1]))
        assert next(view) == 1
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(view)

    def test_two_passes_at_once(self, monitor):
        view = monitor.iterate([1, 2, 3])
        assert list(zip(view, view, strict=True)) == [(1, 1), (2, 2), (3, 3)]
        stream = monitor.iterate(iter([1, 2, 3, 4]))
        assert list(zip(stream, stream, strict=True)) == [(1, 2), (3, 4)]

    def test_attributes_are_the_loaders_own(self, monitor):
        loader = DataLoader(list(range(6)), batch_size=2)
        view = monitor.iterate(loader)
        assert isinstance(view, DataLoader)
        assert view.batch_size == 2
        assert view.dataset is loader.dataset
        assert isinstance(view.sampler, SequentialSampler)
        assert isinstance(view.batch_sampler, BatchSampler)
        loader.sampler.epoch = None
        view.sampler.epoch = 3
        assert loader.sampler.epoch == 3

    def test_only_fetching_is_counted(self, monitor, clock):
        def load():
            for item in range(3):
                clock.advance(2)
                yield item
            clock.advance(1000)

        for step, _ in enumerate(monitor.iterate(load()), start=1):
            clock.advance(50)
            monitor.record_samples(4)
            snapshot = monitor.step(step)
        assert snapshot["t_data"] == 2
        assert snapshot["samples_per_sec"] == 2.0

    def test_collating_in_this_process_is_counted(self, monitor, clock, timings):
        def slow(items):
            clock.advance(3)
            return torch.tensor(items)

        assert len(list(monitor.iterate(DataLoader(list(range(8)), batch_size=2, collate_fn=slow)))) == 4
        assert timings() == {"data": 12}

    def test_starting_a_loader_is_counted_with_the_first_item_and_waiting_to_use_it_is_not(self, monitor, clock):
        class Loader:
            def __iter__(self):
                clock.advance(6)
                return self.load()

            def load(self):
                for item in range(2):
                    clock.advance(1)
                    yield item

        iterator = iter(monitor.iterate(Loader()))
        clock.advance(100)
        next(iterator)
        assert monitor.snapshot(1)["t_data"] == 7
        clock.advance(100)
        next(iterator)
        assert monitor.snapshot(2)["t_data"] == 1

    def test_a_loader_starts_where_iter_is_called_so_that_random_numbers_come_in_the_same_order(self, monitor):
        def program(loader):
            torch.manual_seed(0)
            iterator = iter(loader)
            before = torch.rand(1)
            return [before, *iterator, torch.rand(1)]

        loader = DataLoader(torch.arange(8), batch_size=4, shuffle=True)
        assert as_lists(program(loader)) == as_lists(program(monitor.iterate(loader)))

    def test_an_error_in_starting_is_raised_where_iter_is_called(self, monitor):
        class Broken:
            def __iter__(self):
                raise OSError("disk")

        view = monitor.iterate(Broken())
        with pytest.raises(OSError, match="disk"):
            iter(view)

    @pytest.mark.parametrize("count", [1, 2, 9])
    def test_the_clock_is_read_twice_an_item(self, count):
        clock = TickingClock()
        monitor = ThroughputMonitor("cpu", count, clock)
        for step, _ in enumerate(monitor.iterate([0] * count), start=1):
            monitor.record_samples(4)
            snapshot = monitor.step(step)
        assert snapshot["t_data"] == count
        assert snapshot["samples_per_sec"] == 4.0

    def test_an_iterator_is_closed_as_a_bare_for_closes_it(self, monitor):
        closed = []

        def load():
            try:
                yield 1
                yield 2
            finally:
                closed.append(True)

        for _ in monitor.iterate(load()):
            break
        assert closed, "nobody else holds the generator"
        closed.clear()
        kept = load()
        for _ in monitor.iterate(kept):
            break
        assert not closed
        assert list(kept) == [2]

    def test_an_error_passes_untouched_and_is_not_counted(self, monitor, clock, timings):
        error = OSError("file 7")

        def load():
            clock.advance(1)
            yield 0
            clock.advance(30)
            raise error

        got = []
        with pytest.raises(OSError, match="file 7") as caught:
            got.extend(monitor.iterate(load()))
        assert caught.value is error
        assert timings() == {"data": 1}

    def test_a_loop_that_skips_bad_samples_goes_on_where_the_loader_does(self, monitor):
        class Dataset(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                if index == 1:
                    raise ValueError(index)
                return index

        def program(loader):
            got, iterator = [], iter(loader)
            while True:
                try:
                    got.append(next(iterator))
                except ValueError:
                    got.append("bad")
                except StopIteration:
                    return got

        def program_without_iter(view):
            got = []
            while True:
                try:
                    got.append(next(view))
                except ValueError:
                    got.append("bad")
                except StopIteration:
                    return got

        loader = DataLoader(Dataset(), batch_size=None)
        assert program(loader) == program(monitor.iterate(loader)) == [0, "bad", 2, 3]
        assert program_without_iter(monitor.iterate(loader)) == [0, "bad", 2, 3]

    def test_a_length_that_is_not_implemented_is_not_asked_for(self, monitor, clock, timings):
        class Odd:
            def __iter__(self):
                yield from (0, 1, 2)

            def __len__(self):
                raise NotImplementedError

        assert [item for item in monitor.iterate(Odd())] == [0, 1, 2]  # noqa: C416  # list() asks for the length
        with pytest.raises(NotImplementedError):
            len(monitor.iterate(Odd()))

    def test_iterating_over_a_view_of_a_view_counts_once(self, monitor, clock, timings):
        def load():
            for item in range(2):
                clock.advance(3)
                yield item

        assert list(monitor.iterate(monitor.iterate(load()))) == [0, 1]
        assert timings() == {"data": 6}

    def test_a_generators_own_methods_are_reached(self, monitor):
        def load():
            got = yield 1
            yield got

        iterator = iter(monitor.iterate(load()))
        assert next(iterator) == 1
        assert iterator.send("sent") == "sent"
        iterator.close()
        assert list(iterator) == []

    def test_a_dataloaders_workers_are_started_once_a_pass_and_persist(self, monitor):
        loader = DataLoader(list(range(4)), batch_size=2, num_workers=1, persistent_workers=True)
        view = monitor.iterate(loader)
        assert as_lists(view) == as_lists(view) == [[0, 1], [2, 3]]

    def test_tee_and_copies_of_a_pass(self, monitor, timings):
        one, two = itertools.tee(monitor.iterate(DataLoader(list(range(4)), batch_size=2)))
        assert as_lists(one) == as_lists(two) == [[0, 1], [2, 3]]
        iterator = iter(monitor.iterate([1, 2, 3]))
        next(iterator)
        for other in (copy.copy(iterator), copy.deepcopy(iterator), pickle.loads(pickle.dumps(iterator))):
            assert list(other) == [2, 3]
        assert next(iterator) == 2

    def test_a_copy_or_pickle_of_a_view_is_the_iterable(self, monitor):
        view = monitor.iterate([1, 2])
        for other in (copy.copy(view), copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
            assert type(other) is list
            assert other == [1, 2]
