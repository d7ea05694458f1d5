"""Hugging Face's Trainer on a small GPT-2 with random weights: two batches a step, an evaluation every 20 steps.

By hand: `data` around the loaders that the Trainer makes; `forward` and `inference` around `compute_loss`, which calls
the model (whose own loss is a part of it); `backward` around the accelerator's; `optimizer` in the `step` of the
optimizer given to it.
"""

import torch
from hand import HandTimes
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

hand = HandTimes()


class Tokens(Dataset):
    def __init__(self, count, seed=0, length=32, vocabulary=256):
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(vocabulary, (count, 1), generator=generator)
        self.sequences = (starts + 3 * torch.arange(length)) % vocabulary

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        return {"input_ids": self.sequences[index], "labels": self.sequences[index]}


class HandTimedTrainer(Trainer):
    def get_train_dataloader(self):
        return hand.batches(super().get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset=None):
        return hand.batches(super().get_eval_dataloader(eval_dataset))

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        backward = self.accelerator.backward

        def timed_backward(loss, **kwargs):
            with hand.time("backward"):
                backward(loss, **kwargs)

        self.accelerator.backward = timed_backward

    def compute_loss(self, model, inputs, *args, **kwargs):
        training = torch.is_grad_enabled()
        if training:
            hand.samples += len(inputs["input_ids"])
        with hand.time("forward" if training else "inference"):
            return super().compute_loss(model, inputs, *args, **kwargs)


def main():
    torch.set_num_threads(1)
    set_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir="gpt2",
        num_train_epochs=2,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=16,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=20,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        seed=0,
    )
    trainer = HandTimedTrainer(
        model=model,
        args=arguments,
        train_dataset=Tokens(1100),
        eval_dataset=Tokens(100, seed=1),
        optimizer_cls_and_kwargs=(hand.optimizer(torch.optim.AdamW), {"lr": 1e-3}),
    )
    result = trainer.train()
    trainer.evaluate()
    hand.steps = result.global_step
    hand.save(result.training_loss, model)


if __name__ == "__main__":
    main()
