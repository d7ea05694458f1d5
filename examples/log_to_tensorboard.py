"""Snapshots as TensorBoard's scalars, each at its step.

Run it from the root of the repository, and look at it with `tensorboard --logdir tensorboard-runs`:

    python examples/log_to_tensorboard.py
"""

from phases_to_log import DEVICE, train
from torch.utils.tensorboard import SummaryWriter

from mlvbench import ThroughputMonitor


def log(writer: SummaryWriter, snapshot: dict[str, float]) -> None:
    step = int(snapshot.pop("step"))
    for key, value in snapshot.items():
        # Rounded to 32 bits, seven digits. With `double_precision=True` the file has them all, and TensorBoard's
        # server, as it starts by default, shows nothing of it.
        writer.add_scalar(f"mlvbench/{key}", value, step)


def main() -> None:
    monitor = ThroughputMonitor(DEVICE, record_every_n_steps=50)
    with SummaryWriter("tensorboard-runs") as writer:
        monitor.subscribe(lambda snapshot: log(writer, snapshot))
        train(monitor)
    monitor.save("throughput.json")


if __name__ == "__main__":
    main()
