"""KTO on labelled answers."""

import logging

from datasets import load_dataset
from trl import KTOConfig, KTOTrainer

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")


def main() -> None:
    args = KTOConfig(
        output_dir="out/kto",
        beta=0.1,
        desirable_weight=1.0,
        undesirable_weight=1.0,
        learning_rate=1e-6,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        max_length=1024,
        num_train_epochs=1,
        logging_steps=10,
        save_steps=250,
        save_total_limit=2,
        report_to="tensorboard",
    )
    logging.info("starting with %s", args)
    data = load_dataset("trl-lib/kto-mix-14k", split="train")
    trainer = KTOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", args=args, train_dataset=data)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
