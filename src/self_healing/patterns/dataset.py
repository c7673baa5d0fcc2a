"""A record or a batch is not what the model expects.

Rows are anchored on whole messages. The bare words shape, dimension and index prove nothing: a bug in the model says
them too.
"""

from __future__ import annotations

from ..actions.quarantine_records import QuarantineRecords
from ..actions.retry_later import RetryLater
from ..actions.skip_batches import SkipBatches
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

AT_ONCE_S = 0.5
LEAVE_IT_OUT = (
    rung(RetryLater(base_s=AT_ONCE_S), success=0.5),
    rung(QuarantineRecords(), success=0.5),
    rung(SkipBatches(), success=0.6),
    rung(StopRun()),
)
WORKERS_AGAIN = (rung(RetryLater(base_s=AT_ONCE_S), success=0.6), rung(StopRun()))

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="fails-whatever-the-data",
        says="The code of the model, the dataset or the collator fails whatever it is given: no record is to blame.",
        failure=FailureType.CRASH,
        fine="script_error",
        text=r"self-healing: (?:other data fail in the same way|all \d+ records of the batch fail)",
        weight=0.98,
        remedy=(rung(StopRun()),),
        fixes=(
            "Correct the code where the traceback ends, or a setting that does not fit it: vocabulary, columns, padding.",
        ),
        matches=(
            (
                "IndexError: list index out of range\nself-healing: other data fail in the same way (the next batch): this is "
                "the code of the model or its settings, and not the records."
            ),
            (
                "KeyError: 'labels'\nself-healing: all 8 records of the batch fail, and 8 of 8 others tried: this is the code of "
                "the dataset or collator, or its settings, and not the records."
            ),
        ),
        but_not=("ValueError: all 8 records of the batch fail",),
        source="what the adapter remarks on an exception after it has tried other data",
    ),
    Pattern(
        name="record-of-an-evaluation",
        says="An evaluation has met a record that cannot be used; the training is sound.",
        failure=FailureType.DATA_ERROR,
        fine="data_shape",
        text=r"self-healing: raised in an evaluation, by its data",
        weight=0.98,
        remedy=(rung(StopRun()),),
        fixes=("Repair or drop the record of the evaluation's dataset that the traceback ends at, then resume.",),
        matches=(
            "IndexError: list index out of range\nself-healing: raised in an evaluation, by its data: a batch could not be predicted.",
        ),
        but_not=("ValueError: raised in an evaluation, by its data",),
        source="what the adapter remarks on an exception of an evaluation",
    ),
    Pattern(
        name="no-record-is-good",
        says="Every record that there is fails: the data or the code that reads them is wrong.",
        failure=FailureType.DATA_ERROR,
        fine="data_shape",
        text=r"self-healing: each of the \d+ records? that there (?:is|are) fails",
        weight=0.98,
        remedy=(rung(StopRun()),),
        fixes=("Look at the records, and at the code where the traceback ends.",),
        matches=("ValueError: bad\nself-healing: each of the 1 record that there is fails: it cannot be said whether",),
        but_not=("ValueError: each of the 2 records that there are fails",),
        source="what the adapter remarks on an exception after it has tried other data",
    ),
    Pattern(
        name="too-many-bad-records",
        says="More records are bad than may be left out: the dataset or its code is wrong, and not the records.",
        failure=FailureType.DATA_ERROR,
        fine="data_shape",
        text=r"\d+ of \d+ records \([^)]*\) had to be left out, more than \d+",
        weight=0.98,
        remedy=(rung(StopRun()),),
        fixes=(
            "Repair or drop the records on healing/quarantine.jsonl, or correct the dataset's code, then delete the list.",
            "Raise quarantine_records and quarantine_fraction if so much bad data is expected.",
        ),
        matches=(
            "TooManyBadRecords: 11 of 320 records (3.4 %) had to be left out, more than 10 and more than 0.1 % (ValueError)",
        ),
        but_not=("ValueError: 3 records had to be left out",),
        source="what the adapter raises",
    ),
    Pattern(
        name="data-worker-raised",
        says="Reading or preparing a record failed in a data worker.",
        failure=FailureType.DATA_ERROR,
        fine="data_shape",
        text=r"Caught \w+ in DataLoader worker process \d+",
        weight=0.7,
        remedy=LEAVE_IT_OUT,
        fixes=("Set num_workers to 0 to see the plain traceback and the record it fails on.",),
        matches=(
            "ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):",
        ),
        but_not=("RuntimeError: DataLoader worker (pid 4321) is killed by signal: Killed.",),
        source="PyTorch, torch/_utils.py",
    ),
    Pattern(
        name="data-worker-silent",
        says="A data worker did not deliver in time.",
        failure=FailureType.DATA_ERROR,
        fine="hang",
        text=r"DataLoader timed out after \d+(?:\.\d+)? seconds",
        weight=0.9,
        remedy=WORKERS_AGAIN,
        fixes=("Look for a record that takes very long or crashes a native library; lower the number of workers.",),
        matches=("RuntimeError: DataLoader timed out after 120 seconds",),
        but_not=("RuntimeError: DataLoader worker (pid 3002) is killed by signal: Bus error.",),
        source="PyTorch, torch/utils/data/dataloader.py",
    ),
    Pattern(
        name="data-worker-vanished",
        says="A data worker ended without saying why: killed, out of shared memory, or crashed in native code.",
        failure=FailureType.DATA_ERROR,
        fine="unknown_child_failure",
        text=r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",
        weight=0.63,
        is_echo=True,
        remedy=WORKERS_AGAIN,
        fixes=(
            "Set num_workers to 0: the plain error shows, or it goes away, which speaks for memory (free -h, df -h /dev/shm).",
        ),
        matches=("RuntimeError: DataLoader worker (pid(s) 1203, 1204) exited unexpectedly",),
        but_not=("RuntimeError: DataLoader worker (pid 3002) is killed by signal: Bus error.",),
        source="PyTorch, torch/utils/data/dataloader.py",
    ),
    Pattern(
        name="ragged-batch",
        says="The records of a batch have different lengths and were not padded.",
        failure=FailureType.DATA_ERROR,
        fine="data_shape",
        text=(
            r"Unable to create tensor, you should probably activate truncation"
            r"|expected sequence of length \d+ at dim \d+ \(got \d+\)|stack expects each tensor to be equal size"
            r"|each element in list of batch should be of equal size|too many dimensions 'str'|setting an array element with a sequence"
            r"|[Uu]nable to (?:create|convert)[^\n]{0,60} to (?:a )?tensor|Image features and image tokens do not match|Mismatch in `\w+` token count|can't convert np\.ndarray of type numpy\.object_"
            r"|batch must contain tensors, numpy arrays, numbers, dicts or lists|excessive nesting|Could not infer dtype of|inhomogeneous shape|Trying to resize storage that is not resizable"
        ),
        weight=0.92,
        remedy=LEAVE_IT_OUT,
        fixes=("Use a collator that pads, or truncate to max_length; drop columns that are not tensors.",),
        matches=(
            (
                "ValueError: Unable to create tensor, you should probably activate truncation and/or padding with "
                "'padding=True' 'truncation=True' to have batched tensors with the same length."
            ),
            "ValueError: expected sequence of length 128 at dim 1 (got 131)",
            "ValueError: too many dimensions 'str'",
            "TypeError: default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found <class 'NoneType'>",
            "RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at entry 0 and [1, 224, 224]",
        ),
        but_not=("ValueError: expected sequence of tokens",),
        source="transformers tokenization_utils_base.py, PyTorch collate",
    ),
    Pattern(
        name="shapes-do-not-fit",
        says="The shapes of a batch and of the model do not fit together.",
        failure=FailureType.DATA_ERROR,
        fine="shape_mismatch",
        text=(
            r"mat1 and mat2 shapes cannot be multiplied|The size of tensor a \(\d+\) must match the size of tensor b"
            r"|Expected input batch_size \(\d+\) to match target batch_size|Sizes of tensors must match except in dimension"
            r"|shape '\[[-\d, ]+\]' is invalid for input of size|must match the existing size \(\d+\)|size mismatch, m1: |Given groups=\d+, weight of size"
            r"|Expected more than 1 value per channel when training|[Cc]alculated (?:padded )?(?:input|output) size|could not be broadcast together with shapes"
            r"|Incompatible shapes:|(?:batch size|shapes?|dimensions?) mismatch\b|Dimensions must be equal|logits and labels must be broadcastable|Attention (?:mask|weights) should be of size|Shapes? (?:\S{1,60}|\([^()\n]{1,60}\)) and (?:\S{1,60}|\([^()\n]{1,60}\)) are incompatible|Target size \(torch\.Size\(.{1,40}\)\) must be (?:the same|different)"
            r"|a Tensor with \d+ elements cannot be converted to Scalar|shapes? \S{1,40} (?:and|,) ?\S{1,40} not aligned|does not match the shape of the indexed tensor"
            r"|[Ee]xpected \d+[dD](?: \([^)]{1,60}\))? (?:or \d[dD] (?:\([^)]{1,60}\) )?)?(?:input|tensor)|size of tensor \S+ must match|Dimension out of range \(expected|Expected hidden\[?\d?\]? size"
            r"|to have \d+ channels, but got \d+|is incompatible with the layer: expected|input\.size\(-1\) must be equal|inconsistent tensor size"
        ),
        weight=0.9,
        remedy=LEAVE_IT_OUT,
        fixes=("Print the shapes of the failing batch; the last, smaller batch of an epoch is a usual suspect.",),
        matches=(
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x16 and 8x16)",
            "RuntimeError: shape '[32, 3, 224, 224]' is invalid for input of size 4816896",
            "RuntimeError: Given groups=1, weight of size [64, 3, 7, 7], expected input[8, 1, 224, 224] to have 3 channels, but got 1",
            "ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 256])",
            "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 14 but got size 15 for tensor number 1",
            "ValueError: operands could not be broadcast together with shapes (3,4) (5,)",
            "ValueError: Shapes (None, 1) and (None, 10) are incompatible",
            "ValueError: Attention mask should be of size (1, 1, 512, 1024), but is torch.Size([1, 1, 512, 512])",
            "InvalidArgumentError: logits and labels must be broadcastable: logits_size=[32,10] labels_size=[32,11]",
            "RuntimeError: The size of tensor a (512) must match the size of tensor b (513) at non-singleton dimension 1",
        ),
        but_not=(
            "RuntimeError: size mismatch for lm_head.weight: copying a param with shape torch.Size([32000, 4096])",
            "AssertionError: unexpected shape",
        ),
        source="PyTorch, as raised by torch.nn.functional",
    ),
    Pattern(
        name="token-or-label-out-of-range",
        says="A token id or a label is larger than the model knows.",
        failure=FailureType.DATA_ERROR,
        fine="data_shape",
        text=(
            r"index out of range in self|Target -?\d+ is out of bounds|label value of -?\d+ which is outside the valid range"
            r"|indices\[[\d,]{1,40}\] = -?\d+ is not in \[0, \d+\)"
        ),
        weight=0.92,
        remedy=LEAVE_IT_OUT,
        fixes=(
            "Resize the embeddings after adding tokens, and check that labels run from 0 to the number of classes less 1.",
        ),
        matches=(
            "IndexError: index out of range in self",
            "IndexError: Target 9 is out of bounds.",
            "InvalidArgumentError: Received a label value of 10 which is outside the valid range of [0, 10).",
            "InvalidArgumentError: indices[3,17] = 30522 is not in [0, 30522)",
        ),
        but_not=(
            "IndexError: list index out of range",
            "IndexError: index 5 is out of bounds for dimension 0 with size 5",
        ),
        source="PyTorch, as raised by torch.nn.functional",
    ),
    Pattern(
        name="record-too-long",
        says="A record is longer than the model or the configuration allows.",
        failure=FailureType.DATA_ERROR,
        fine="data_shape",
        text=(
            r"sequence_length=\d+ is larger than max_length|Sequence length \d+ is larger than max_length"
            r"|prompt \((?:total )?length \d+\) is (?:longer than|too long)|Prompt length \d+ is longer than"
        ),
        weight=0.9,
        remedy=LEAVE_IT_OUT,
        fixes=(
            "Leave long records out (verl: data.filter_overlong_prompts=True), cut them (data.truncation=left), or raise the limit.",
        ),
        matches=(
            "NotImplementedError: sequence_length=5120 is larger than max_length=4096",
            "ValueError: The decoder prompt (length 5120) is longer than the maximum model length of 4096.",
        ),
        but_not=(
            "Token indices sequence length is longer than the specified maximum sequence length for this model (612 > 512).",
        ),
        source="verl, utils/torch_functional.py; vLLM, inputs",
    ),
    Pattern(
        name="records-unreadable",
        says="A data file holds records that cannot be read.",
        failure=FailureType.DATA_ERROR,
        fine="data_shape",
        text=(
            r"An error occurred while generating the dataset|JSON parse error: |cannot identify image file"
            r"|ArrowInvalid: |ArrowNotImplementedError: |Corrupt snappy compressed data"
        ),
        weight=0.85,
        remedy=LEAVE_IT_OUT,
        fixes=("Open the named file: a broken download, a Git LFS pointer instead of data, or mixed column types.",),
        matches=(
            "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
            "pyarrow.lib.ArrowInvalid: JSON parse error: Column() changed from object to array in row 0",
            "PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f3c>",
        ),
        but_not=("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",),
        source="datasets, pyarrow, Pillow",
    ),
)
