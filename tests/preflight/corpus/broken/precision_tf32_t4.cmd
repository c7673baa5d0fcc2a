python train_args.py --output_dir out/t4 --tf32 true --fp16 --learning_rate 5e-5 --per_device_train_batch_size 16 --max_steps 500 --logging_steps 10 --save_steps 100
