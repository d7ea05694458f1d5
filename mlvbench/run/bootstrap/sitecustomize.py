"""Attaches the profiler to a Python process that imports torch: this folder is first on the PYTHONPATH of a run.

Python imports the first `sitecustomize` that it finds, and so not the one that this hides, which is run from here.
Until torch, or a module with a phase, is imported nothing else is, so that a process without it starts as fast as ever,
and finds the modules that it would find. A process that the profiler cannot be attached to runs as it would without it.
Any Python 3 may come.
"""

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # as in `typing`, which is not imported for this
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_hidden_one() -> None:
    # What it raises passes to Python, as it would without this.
    this = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # another one now
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if "sitecustomize" not in sys.modules and this is not None:
            sys.modules["sitecustomize"] = this


class _WhenImported:
    """Stands in `sys.meta_path` until the first import of a module that is watched, and then attaches."""

    def __init__(self) -> None:
        self.watched = os.environ["MLVBENCH_WATCHED"].split(",")

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Finds nothing, but a module that is watched, for which the others are asked anew."""
        if name not in self.watched:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        _attach()
        # What watches it from now on has come after the search had begun.
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)  # type: ignore[arg-type]
            if spec is not None:
                return spec
        return None


def _attach() -> None:
    try:
        _running().attach()
    except Exception as error:
        sys.stderr.write("mlvbench: not profiled: %r\n" % (error,))  # noqa: UP031  # also on an old Python


def _report() -> None:
    # The script's own folder is not searched any more: a rich.py in it would be run.
    sys.path[:] = _PATH
    try:
        _running().report()
    except Exception as error:
        sys.stderr.write("mlvbench: cannot report: %r\n" % (error,))  # noqa: UP031


def _running() -> "ModuleType":
    """The module that does it all, from where this file is: the package need not be on the path of a child."""
    if "mlvbench" not in sys.modules:
        import importlib.util

        package = os.path.dirname(os.path.dirname(_HERE))
        spec = importlib.util.spec_from_file_location("mlvbench", os.path.join(package, "__init__.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules["mlvbench"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    import mlvbench.run.process

    return mlvbench.run.process


try:
    _run_the_hidden_one()
finally:
    _PATH = list(sys.path)
    if os.environ.get("MLVBENCH_PREFIX") == sys.prefix:
        sys.meta_path.insert(0, _WhenImported())  # type: ignore[arg-type]
        if os.environ.get("MLVBENCH_PROCESS") == str(os.getpid()):
            # The processes that it starts leave the report to it.
            os.environ["MLVBENCH_REPORTER"] = str(os.getpid())
            atexit.register(_report)
    elif "MLVBENCH_PREFIX" in os.environ and "MLVBENCH_REPORTER" not in os.environ:
        # No process of ours is going to say that nothing was recorded.
        sys.stderr.write(
            "mlvbench: not profiled: it runs in %s, and mlvbench is in %s\n"  # noqa: UP031
            % (sys.prefix, os.environ["MLVBENCH_PREFIX"])
        )
