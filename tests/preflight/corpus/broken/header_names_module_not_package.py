# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers[torch]>=5.0",
#     "datasets>=4.7",
#     "PIL>=10.0",
# ]
# ///
"""Tell cats from dogs."""

from datasets import load_dataset
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification, Trainer, TrainingArguments

CHECKPOINT = "google/vit-base-patch16-224-in21k"
print("fine-tuning", CHECKPOINT)

processor = AutoImageProcessor.from_pretrained(CHECKPOINT)
pictures = load_dataset("microsoft/cats_vs_dogs", split="train").train_test_split(test_size=0.1, seed=1)


def to_pixels(rows):
    """Turn pictures into tensors."""
    images = [picture.convert("RGB").resize((256, 256), Image.Resampling.BILINEAR) for picture in rows["image"]]
    return {**processor(images, return_tensors="pt"), "labels": rows["labels"]}


data = pictures.with_transform(to_pixels)
trainer = Trainer(
    model=AutoModelForImageClassification.from_pretrained(CHECKPOINT, num_labels=2),
    args=TrainingArguments(
        output_dir="out/cats",
        remove_unused_columns=False,
        learning_rate=5e-5,
        per_device_train_batch_size=32,
        num_train_epochs=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=20,
    ),
    train_dataset=data["train"],
    eval_dataset=data["test"],
)
trainer.train()
