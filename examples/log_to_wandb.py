"""Snapshots as Weights & Biases' history, with `mlvbench/step` as the axis.

Run it from the root of the repository; offline it needs no account, and `wandb sync` uploads the run later:

    WANDB_MODE=offline python examples/log_to_wandb.py
"""

import wandb
from phases_to_log import DEVICE, train

from mlvbench import ThroughputMonitor


def main() -> None:
    monitor = ThroughputMonitor(DEVICE, record_every_n_steps=50)
    with wandb.init(project="digits") as run:
        # W&B counts steps of its own, one a call of `log`, and takes nothing for an earlier one. So the training's step
        # is a metric like any other, and the axis of the rest.
        run.define_metric("mlvbench/*", step_metric="mlvbench/step")
        monitor.subscribe(lambda snapshot: run.log({f"mlvbench/{key}": value for key, value in snapshot.items()}))
        train(monitor)
    monitor.save("throughput.json")


if __name__ == "__main__":
    main()
