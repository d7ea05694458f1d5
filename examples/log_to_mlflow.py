"""Snapshots as MLflow's metrics, each at its step.

Run it from the root of the repository, and look at it with `mlflow ui --backend-store-uri sqlite:///mlflow.db`:

    python examples/log_to_mlflow.py
"""

import mlflow
from phases_to_log import DEVICE, train

from mlvbench import ThroughputMonitor


def log(snapshot: dict[str, float]) -> None:
    step = int(snapshot.pop("step"))
    mlflow.log_metrics({f"mlvbench/{key}": value for key, value in snapshot.items()}, step=step)


def main() -> None:
    monitor = ThroughputMonitor(DEVICE, record_every_n_steps=50)
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    with mlflow.start_run():
        monitor.subscribe(log)
        train(monitor)
    monitor.save("throughput.json")


if __name__ == "__main__":
    main()
