torchrun --standalone --nproc_per_node 4 scripts/finetune_v2.py --learning_rate 2e-5 --output_dir out/v2
