"""Arguments that were renamed or removed, and what to write instead (transformers 5.23, TRL 1.16; 2026-11).

An argument is only spoken of where the installed version does not take it, so the list may name what an old one still does. Where
a text ends in `=...`, the new argument takes the value of the old one, which is put there.
"""

from __future__ import annotations

_AUTOMATIC = "Remove it: the device is chosen by itself"
_REMOVED = "Remove it: there is nothing to set any more"

ARGUMENTS = {
    "evaluation_strategy": "Write eval_strategy=...",
    "no_cuda": "Write use_cpu=True",
    "use_mps_device": _AUTOMATIC,
    "xpu_backend": "Write ddp_backend=...",
    "tpu_num_cores": _AUTOMATIC,
    "tpu_metrics_debug": 'Write debug="tpu_metrics_debug"',
    "per_gpu_train_batch_size": "Write per_device_train_batch_size=...",
    "per_gpu_eval_batch_size": "Write per_device_eval_batch_size=...",
    "warmup_ratio": "Write it as warmup_steps, where a number below 1 is a share of all steps: warmup_steps=...",
    "group_by_length": 'Write train_sampling_strategy="group_by_length"',
    "overwrite_output_dir": "Remove it: nothing is resumed unless trainer.train(resume_from_checkpoint=...) says so",
    "logging_dir": "Remove it and set the environment variable TENSORBOARD_LOGGING_DIR",
    "save_safetensors": "Remove it: safetensors is the only format",
    "push_to_hub_model_id": "Write hub_model_id=...",
    "push_to_hub_organization": 'Write hub_model_id="organization/name"',
    "push_to_hub_token": "Write hub_token=...",
    "fp16_backend": _REMOVED,
    "fp16_opt_level": _REMOVED,
    "half_precision_backend": _REMOVED,
    "torchdynamo": "Write torch_compile_backend=...",
    "use_ipex": _REMOVED,
    "use_legacy_prediction_loop": _REMOVED,
    "jit_mode_eval": _REMOVED,
    "past_index": _REMOVED,
    "ray_scope": "Give it to trainer.hyperparameter_search(...)",
    "mp_parameters": _REMOVED,
    "adafactor": 'Write optim="adafactor"',
    "include_inputs_for_metrics": 'Write include_for_metrics=["inputs"]',
    "include_tokens_per_second": 'Write include_num_input_tokens_seen="non_padding"',
    "dispatch_batches": 'Write accelerator_config={"dispatch_batches": ...}',
    "split_batches": 'Write accelerator_config={"split_batches": ...}',
    "fsdp_min_num_params": 'Write fsdp_config={"min_num_params": ...}',
    "fsdp_transformer_layer_cls_to_wrap": 'Write fsdp_config={"transformer_layer_cls_to_wrap": [...]}',
    "torch_dtype": 'Write model_init_kwargs={"dtype": "bfloat16"}, or dtype on the command line',
    "use_liger": "Write use_liger_kernel=True",
    "use_liger_loss": "Write use_liger_kernel=True",
    "max_seq_length": "Write max_length=...",
    "max_seq_len": "Write max_length=...",
    "max_target_length": "Write max_length=... for prompt and answer together",
    "max_prompt_length": "Remove it, and leave prompts that are too long out of the data: dataset.filter(...)",
    "response_length": "Write max_completion_length=...",
    "max_new_tokens": "Write max_completion_length=...",
    "num_of_sequences": _REMOVED,
    "chars_per_token": _REMOVED,
    "dataset_batch_size": _REMOVED,
    "label_pad_token_id": "Remove it: it is always -100",
    "padding_value": "Remove it: the tokenizer's pad token is used",
    "is_encoder_decoder": "Remove it: it is read from the model",
    "generate_during_eval": "Remove it and add LogCompletionsCallback to the trainer",
    "rpo_alpha": 'Write loss_type=["sigmoid", "sft"] and loss_weights=[1.0, ...]',
    "reference_free": "Use CPO or ORPO (trl.experimental) where no reference model is wanted",
    "force_use_ref_model": "Remove it and give ref_model to the trainer",
    "model_adapter_name": _REMOVED,
    "ref_adapter_name": _REMOVED,
    "ref_model_init_kwargs": "Remove it: the reference model is loaded as model_init_kwargs say",
    "base_model_attribute_name": _REMOVED,
    "tools": "Give it to the trainer or to the data set as a column",
    "vllm_device": 'Remove it; choose vllm_mode="colocate" or "server"',
    "vllm_dtype": _REMOVED,
    "vllm_max_model_len": "Write vllm_max_model_length=...",
    "vllm_guided_decoding_regex": "Write vllm_structured_outputs_regex=...",
    "vllm_enable_prefix_caching": _REMOVED,
    "use_vllm_server": 'Write use_vllm=True, vllm_mode="server"',
    "rloo_k": "Write num_generations=...",
    "kl_coef": "Write beta=...",
    "num_ppo_epochs": "Write num_iterations=...",
    "num_mini_batches": "Write steps_per_generation=... in micro-batches",
    "total_episodes": "Write max_steps=... or num_train_epochs=...",
    "use_reentrant": 'Write gradient_checkpointing_kwargs={"use_reentrant": ...}',
    "seq_length": "Write max_length=...",
    "epochs": "Write num_train_epochs=...",
    "num_epochs": "Write num_train_epochs=...",
    "lr": "Write learning_rate=...",
    "batch_size": "Write per_device_train_batch_size=...",
    "train_batch_size": "Write per_device_train_batch_size=...",
    "eval_batch_size": "Write per_device_eval_batch_size=...",
    "lr_scheduler": 'Write lr_scheduler_type="cosine"',
    "optimizer": 'Write optim="adamw_torch"',
    "gradient_clipping": "Write max_grad_norm=...",
}
"""Of `TrainingArguments` and the configurations of TRL."""

_TO_CONFIG = "max_length dataset_text_field packing eval_packing dataset_num_proc neftune_noise_alpha dataset_kwargs \
loss_type beta label_smoothing model_init_kwargs truncation_mode precompute_ref_log_probs num_generations \
max_completion_length use_vllm".split()

TRAINER = {
    "tokenizer": "Write processing_class=...",
    "image_processor": "Write processing_class=...",
    "feature_extractor": "Write processing_class=...",
    "max_seq_length": "Move it to the configuration as max_length=...",
    "max_prompt_length": "Remove it, and leave prompts that are too long out of the data: dataset.filter(...)",
    "config": "Write args=...",
    "training_args": "Write args=...",
    "dataset": "Write train_dataset=...",
    "train_data": "Write train_dataset=...",
    "eval_data": "Write eval_dataset=...",
    "reward_model": "Write reward_funcs=...",
    "reward_fn": "Write reward_funcs=...",
    "reward_function": "Write reward_funcs=...",
    "reward_functions": "Write reward_funcs=...",
    "policy": "Write model=...",
    "lora_config": "Write peft_config=...",
    "dataset_batch_size": _REMOVED,
    "num_of_sequences": _REMOVED,
    "chars_per_token": _REMOVED,
    "infinite": _REMOVED,
    "is_encoder_decoder": _REMOVED,
    **{name: f"Move it to the configuration: args=...Config({name}=...)" for name in _TO_CONFIG},
}
"""Of the trainers' constructors."""

LORA = {
    "rank": "Write it as r=...",
    "lora_r": "Write it as r=...",
    "alpha": "Write lora_alpha=...",
    "dropout": "Write lora_dropout=...",
    "lora_target_modules": "Write target_modules=[...]",
    "modules": "Write target_modules=[...]",
    "merge_weights": _REMOVED,
    "enable_lora": _REMOVED,
}

AXOLOTL = {
    "evaluation_strategy": "Write eval_strategy: steps",
    "max_packed_sequence_len": "Write sequence_len: ... and sample_packing: true",
    "wandb_run_id": "Write wandb_name: ...",
    "learning_rate_scheduler": "Write lr_scheduler: cosine",
    "batch_size": "Write micro_batch_size and gradient_accumulation_steps",
    "per_device_train_batch_size": "Write micro_batch_size: ...",
    "num_train_epochs": "Write num_epochs: ...",
    "max_length": "Write sequence_len: ...",
    "max_seq_length": "Write sequence_len: ...",
    "lora_rank": "Write lora_r: ...",
    "model_name_or_path": "Write base_model: ...",
    "rl_beta": "Write dpo_beta or rl_beta as the documentation of your version has it",
}
AXOLOTL_KEYS = frozenset(
    "base_model base_model_config revision_of_model tokenizer_config model_type tokenizer_type processor_type trust_remote_code \
    load_in_8bit load_in_4bit strict datasets test_datasets dataset_prepared_path val_set_size output_dir adapter \
    lora_model_dir lora_r lora_alpha lora_dropout lora_target_modules lora_target_linear lora_modules_to_save lora_fan_in_fan_out \
    peft_use_dora peft_use_rslora sequence_len sample_packing eval_sample_packing pad_to_sequence_len group_by_length \
    wandb_project wandb_entity wandb_watch wandb_name wandb_log_model mlflow_tracking_uri mlflow_experiment_name \
    gradient_accumulation_steps micro_batch_size eval_batch_size num_epochs max_steps optimizer lr_scheduler learning_rate \
    cosine_min_lr_ratio train_on_inputs bf16 fp16 tf32 float16 bfloat16 gradient_checkpointing gradient_checkpointing_kwargs \
    early_stopping_patience resume_from_checkpoint auto_resume_from_checkpoints local_rank logging_steps xformers_attention \
    flash_attention sdp_attention eager_attention flex_attention s2_attention attn_implementation warmup_steps warmup_ratio eval_steps \
    evals_per_epoch eval_strategy save_steps saves_per_epoch save_strategy save_total_limit save_only_model eval_table_size \
    eval_max_new_tokens debug deepspeed weight_decay fsdp fsdp_config fsdp_version special_tokens tokens chat_template \
    chat_template_jinja rl rl_beta dpo_beta trl reward_model shuffle_merged_datasets dataset_processes dataset_num_proc \
    hub_model_id hub_strategy push_dataset_to_hub hf_use_auth_token plugins liger_rope liger_rms_norm liger_glu_activation \
    liger_fused_linear_cross_entropy cut_cross_entropy seed max_grad_norm adam_beta1 adam_beta2 adam_epsilon neftune_noise_alpha \
    loss_watchdog_threshold loss_watchdog_patience torch_compile unfrozen_parameters embeddings_skip_upcast overrides_of_model_config \
    dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor remove_unused_columns skip_prepare_dataset \
    lora_mlp_kernel lora_qkv_kernel lora_o_kernel load_best_model_at_end metric_for_best_model greater_is_better \
    use_tensorboard ddp_timeout ddp_find_unused_parameters roles_to_train train_on_eos excess_length_strategy \
    rope_scaling context_parallel_size sequence_parallel_degree tensor_parallel_size".split()
)
