"""Attaches the profiler to a Python process: its folder is first on the PYTHONPATH of every process of a run.

Python imports the first `sitecustomize` that it finds, and so not the one that this hides, which is run from here.
A process that the profiler cannot be attached to runs as it would without it. Any
Python 3 may come here.
"""

import os
import sys

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


def _attach() -> None:
    try:
        if os.environ["MLVBENCH_PREFIX"] != sys.prefix:
            raise RuntimeError(f"it runs in {sys.prefix}, and mlvbench is in {os.environ['MLVBENCH_PREFIX']}")
        _import_package()
        import mlvbench.running

        mlvbench.running.attach()
    except Exception as error:
        # Of the others, that the script starts, the report says what it can.
        if os.environ.get("MLVBENCH_PROCESS") == str(os.getpid()):
            sys.stderr.write(f"mlvbench: not profiled: {error}\n")


def _import_package() -> None:
    # From where this file is: where only the folder with the package was on the path, a child may not have it there.
    if "mlvbench" in sys.modules:
        return
    import importlib.util

    package = os.path.dirname(_HERE)
    spec = importlib.util.spec_from_file_location("mlvbench", os.path.join(package, "__init__.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules["mlvbench"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


try:
    _run_the_hidden_one()
finally:
    if "MLVBENCH_PREFIX" in os.environ:
        _attach()
