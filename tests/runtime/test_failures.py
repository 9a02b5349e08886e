"""The table of known failures: cause, code, advice and retry by what an exception says or how a process ended."""

from __future__ import annotations

import re
import signal
import traceback
from typing import Final

import pytest

from jupyter_dlaas.failures import diagnosis
from jupyter_dlaas.failures.failure_table import ROWS
from jupyter_dlaas.wire.journal import is_retried
from jupyter_dlaas.wire.protocol import Cause, Failure


def test_failure_table_is_large_and_gives_advice() -> None:
    assert len(ROWS) >= 40
    assert all(row.advice.endswith((".", "?")) for row in ROWS)
    assert all(re.fullmatch(r"[a-z_]+", row.code) for row in ROWS)


def test_root_cause_comes_before_its_consequences() -> None:
    peer = diagnosis.from_exception(
        ["RuntimeError", "Exception"], "Connection closed by peer", where=None, traceback=""
    )
    killed = diagnosis.from_exit(None, 9)

    chosen = diagnosis.choose([(0, peer), (2, peer), (1, killed)])

    assert chosen is not None
    assert (chosen.code, chosen.raised_by) == ("killed", (1,))


def test_lost_peer_that_finished_points_to_unequal_loops() -> None:
    peer = diagnosis.from_exception(["RuntimeError"], "Connection closed by peer", where=None, traceback="")

    chosen = diagnosis.choose([(0, peer)], [1])

    assert chosen is not None
    assert chosen.what == "learner 1 finished while learner 0 still trained (RuntimeError: Connection closed by peer)"
    assert "same number of steps" in chosen.advice
    assert diagnosis.choose([(0, peer), (2, diagnosis.from_exit(None, 9))], [1]) == diagnosis.choose(
        [(2, diagnosis.from_exit(None, 9))]
    )


def test_kill_after_full_memory_is_reported_as_such() -> None:
    assert diagnosis.from_exit(None, 9, out_of_memory=True).cause is Cause.RESOURCES
    assert diagnosis.from_exit(None, 9).cause is Cause.EVICTED
    assert diagnosis.from_exit(None, 40).what == "ended by signal 40"


def test_lost_connection_of_a_single_learner_blames_no_other() -> None:
    names = ["ConnectionRefusedError", "ConnectionError", "OSError", "Exception"]

    def connection_failure(*, is_alone: bool) -> Failure:
        message = "[Errno 111] Connection refused"
        return diagnosis.from_exception(names, message, where=None, traceback="", is_alone=is_alone)

    assert connection_failure(is_alone=False).code == "peer_lost"
    assert connection_failure(is_alone=True).code == "connection"
    assert is_retried(connection_failure(is_alone=True)), "the other side may be back"


@pytest.mark.parametrize(
    "message",
    [
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        "The client socket has timed out after 60000ms while trying to connect to (127.0.0.1, 29500).",
        "Broken pipe",
    ],
)
def test_lost_rendezvous_is_retried(message: str) -> None:
    found = diagnosis.from_exception(
        ["DistNetworkError", "DistError", "RuntimeError"], message, where=None, traceback=""
    )

    assert (found.code, is_retried(found)) == ("peer_lost", True)


MESSAGES: Final = r"""
assertion | AssertionError | batch must be even
bad_data | BadGzipFile OSError | Not a gzipped file (b'no')
bad_data | BadZipFile | File is not a zip file
bad_data | EOFError |
bad_data | EOFError | Compressed file ended before the end-of-stream marker was reached
bad_data | EmptyDataError ValueError | No columns to parse from file
bad_data | JSONDecodeError ValueError | Expecting property name enclosed in double quotes: line 1 column 2 (char 1)
bad_data | OSError | Truncated File Read
bad_data | OSError | Unable to synchronously open file (file signature not found)
bad_data | OSError | image file is truncated
bad_data | ParserError ValueError | Error tokenizing data. C error: Expected 2 fields in line 3, saw 3
bad_data | ParseError SyntaxError | mismatched tag: line 1, column 24
bad_data | ParseError SyntaxError | not well-formed (invalid token): line 1, column 4
bad_data | ReadError TarError | file could not be opened successfully:
bad_data | RuntimeError | PytorchStreamReader failed reading zip archive:
bad_data | SafetensorError | Error while deserializing: header too large
bad_data | ScannerError MarkedYAMLError YAMLError | mapping values are not allowed here
bad_data | UnicodeDecodeError UnicodeError ValueError | 'utf-8' codec can't decode byte 0xff in position 0: invalid
bad_data | UnidentifiedImageError OSError | cannot identify image file <_io.BytesIO object at 0x7f91>
bad_data | UnpicklingError PickleError | pickle data was truncated
bad_data | UnpicklingError | Weights only load failed. … WeightsUnpickler error: Unsupported operand 60
bad_data | error | unpack requires a buffer of 16 bytes
bad_data | InvalidArgumentError | {{function_node __wrapped__DecodeJpeg…}} Unknown image file format. One of JPEG …
bad_value | DateParseError ValueError | Invalid date specified (32/13)
bad_value | ValueError | could not convert string to float: 'n/a'
bad_value | ValueError | dtype='numeric' is not compatible with arrays of bytes/strings.Convert
bad_value | ValueError | invalid literal for int() with base 10: 'abc'
bad_value | ValueError | DataFrame.dtypes for data must be int, float, bool or category.
bad_value | ValueError | pandas dtypes must be int, float or bool.
batch_content | TypeError | default_collate: batch must contain tensors …; found <class 'NoneType'>
batch_content | TypeError | default_collate: batch must contain tensors, numpy arrays; found <class 'NoneType'>
branch_types | TypeError | cond branches must have equal output types but they differ.
changed_in_place | RuntimeError | a leaf Variable that requires grad is being used in an in-place operation.
changed_in_place | RuntimeError | one of the variables … has been modified by an inplace operation
changed_while_iterated | RuntimeError | dictionary changed size during iteration
checkpoints_damaged | CheckpointsDamaged | all 2 checkpoints of this job are damaged
class_weights | RuntimeError | weight tensor should be defined either for all 3 classes or no classes but got
closed_file | ValueError | I/O operation on closed file.
command_failed | CalledProcessError SubprocessError | Command '['false']' returned non-zero exit status 1.
connection | ConnectionError OSError | HTTPConnectionPool(host='127.0.0.1', port=9): Max retries exceeded
connection | DistNetworkError RuntimeError | The client socket has timed out after 1000ms while trying to connect
copied_result | RuntimeError | Only Tensors created explicitly by the user … support the deepcopy protocol
data_worker | RuntimeError | DataLoader worker (pid 7) is killed by signal: Killed.
data_worker_crashed | RuntimeError | DataLoader worker (pid 7) is killed by signal: Segmentation fault.
device_mix | RuntimeError | Input type (torch.FloatTensor) and weight type
device_mix | RuntimeError | Tensor on device cpu is not on the expected device cuda:0!
disk_broken | OSError | [Errno 5] Input/output error
disk_full | OSError | 100000 requested and 1024 written
disk_full | OSError | [Errno 28] No space left on device
disk_full | RuntimeError | [enforce fail at inline_container.cc:595] . unexpected pos 64 vs 0
disk_full | RuntimeError | [enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/0
division_by_zero | ZeroDivisionError ArithmeticError | division by zero
donated_array | RuntimeError | Array has been deleted with shape=float32[3].
download | HTTPError RequestException OSError | 404 Client Error: None for url: http://x
download | HTTPError URLError OSError | HTTP Error 404: Not Found
download | OSError | We couldn't connect to 'https://huggingface.co' to load the files
download | RuntimeError | Error downloading train-images-idx3-ubyte.gz:
download | ReadTimeout RequestException OSError | HTTPSConnectionPool(host='x', port=443): Read timed out.
dtype | InvalidArgumentError | cannot compute AddV2 as input #1 … was expected to be a float tensor but is a int32
dtype | RuntimeError | "nll_loss_forward_reduce_cuda_kernel_2d_index" not implemented for 'Int'
dtype | RuntimeError | Expected tensor for argument #1 'indices' to have one of the following scalar types:
dtype | RuntimeError | Input type (double) and bias type (float) should be the same
dtype | RuntimeError | expected m1 and m2 to have the same dtype, but got: float != double
dtype | RuntimeError | expected target dtype to be Long or Byte, but got Float
dtype | RuntimeError | mat1 and mat2 must have the same dtype, but got Double and Float
dtype | RuntimeError | one_hot is only applicable to index tensor of type LongTensor.
dtype | RuntimeError | result type Float can't be cast to the desired output type Long
dtype | TypeError | grad requires real- or complex-valued inputs
dtype | ValueError | Invalid dtype: object
dtype | ValueError | Invalid dtype: str32
dtype | TypeError | Value 'a' with dtype <U1 is not a valid JAX array type.
empty_data | ValueError | No objects to concatenate
empty_data | ValueError | With n_samples=1, test_size=0.25 and train_size=None, the resulting train set will be empty.
empty_data | ValueError | num_samples should be a positive integer value, but got num_samples=0
empty_data | ValueError | Trainer: training requires a train_dataset.
encoding | UnicodeEncodeError UnicodeError ValueError | 'ascii' codec can't encode character '\u20ac' in position 0
exhausted | StopIteration |
file_exists | FileExistsError OSError | [Errno 17] File exists: 'runs'
file_missing | FileNotFoundError OSError | Caught FileNotFoundError in DataLoader worker process 0.
file_missing | OSError | Repo id must be in the form 'repo_name' or
file_missing | RuntimeError | Dataset not found. You can use download=True to download it
file_missing | ValueError | File not found: filepath=/no/such.keras.
file_missing | NotFoundError | {{function_node __wrapped__IteratorGetNext…}} none.tfrecord; No such file or directory
folder_missing | OSError | Cannot save file into a non-existent directory: 'out'
folder_missing | RuntimeError | Parent directory out does not exist.
fork_after_cuda | RuntimeError | Cannot re-initialize CUDA in forked subprocess.
gpu_assert | AcceleratorError RuntimeError | CUDA error: device-side assert triggered
gpu_busy | AcceleratorError RuntimeError | CUDA error: all CUDA-capable devices are busy or unavailable
gpu_index | AcceleratorError RuntimeError | CUDA error: invalid device ordinal
gpu_library | RuntimeError | cuDNN error: CUDNN_STATUS_EXECUTION_FAILED
gpu_lost | AcceleratorError RuntimeError | CUDA error: uncorrectable ECC error encountered
gpu_memory | AcceleratorError RuntimeError | CUDA error: out of memory
gpu_memory | OutOfMemoryError RuntimeError | CUDA out of memory. Tried to allocate 20.00 MiB
head_size | AssertionError | embed_dim must be divisible by num_heads
head_size | ValueError | The hidden size (10) is not a multiple of the number of attention heads (3)
host_memory | MemoryError |
host_memory | MemoryError | Unable to allocate 7.11 PiB for an array
host_memory | RuntimeError | [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory:
immutable | TypeError | JAX arrays are immutable and do not support
import_name | ImportError | cannot import name 'nosuch' from 'math' (unknown location)
index_range | IndexError LookupError | index 5 is out of bounds for axis 0 with size 3
index_range | IndexError LookupError | list index out of range
index_range | IndexError | index out of range in self
index_range | InvalidArgumentError | {{function_node __wrapped__GatherV2…}} indices[0] = 5 is not in [0, 2)
index_range | RuntimeError | index 5 is out of bounds for dimension 1 with size 2
is_none | AttributeError | 'NoneType' object has no attribute 'shape'
is_none | TypeError | NoneType is not an Optimizer
key_missing | KeyError LookupError | 'loss'
key_missing | MergeError ValueError | No common columns to perform merge on. Merge options: left_on=None
key_missing | OperationalError DatabaseError | no such table: runs
label_range | IndexError | Target 10 is out of bounds.
label_range | InvalidArgumentError | Received a label value of 3 which is outside the valid range of [0, 2).
label_range | RuntimeError | Class values must be smaller than num_classes.
label_range | RuntimeError | all elements of target should be between 0 and 1
label_range | ValueError | Invalid classes inferred from unique values of `y`.  Expected: [0 1 2], got [1 2 3]
label_range | LightGBMError | Label must be in [0, 2), but found 2 in label
label_range | XGBoostError ValueError | label must be discrete values in the range of [0, num_class).
label_shape | RuntimeError | 0D or 1D target tensor expected, multi-target not supported
label_shape | ValueError | Arguments `target` and `output` must have the same rank
label_shape | ValueError | For 1D input, 1D target must have size 1, but got target size: 3
label_shape | ValueError | Target size (torch.Size([4])) must be the same as input size (torch.Size([4, 1]))
label_shape | ValueError | Using a target size (torch.Size([3])) that
label_type | ValueError | Unknown label type: continuous. Maybe you are trying to fit a classifier
linear_algebra | LinAlgError ValueError | Singular matrix
loss_not_scalar | RuntimeError | grad can be implicitly created only for scalar outputs
loss_not_scalar | TypeError | Gradient only defined for scalar-output functions. Output had shape: (2,).
main_guard | RuntimeError | … start a new process before the current process has finished its bootstrapping
metric_labels | ValueError | Classification metrics can't handle a mix of binary and continuous targets
metric_labels | ValueError | Target is multiclass but average='binary'. Please choose another average setting
missing_values | ValueError | Input X contains NaN.
module_hidden | ModuleNotFoundError ImportError | No module named 'sklearn.svm'; 'sklearn' is not a package
module_missing | ImportError | Missing optional dependency 'pyarrow'.  Use pip or conda to install pyarrow.
module_missing | ModuleNotFoundError ImportError | No module named 'nosuchmodule_x'
name_missing | NameError | name 'lr' is not defined
name_missing | UnboundLocalError NameError | cannot access local variable 'x' where it is not associated with a value
native_library | ImportError | libcudart.so.12: cannot open shared object file: No such file or directory
native_library | ImportError | numpy.core.multiarray failed to import
native_library | ValueError | numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header
no_gpu | MisconfigurationException | No supported gpu backend found!
no_gpu | NotImplementedError RuntimeError | Could not run 'aten::empty' with arguments from the 'MPS' backend.
no_gpu | RuntimeError | Cannot access accelerator device when none is available.
no_gpu | RuntimeError | Cannot get CUDA generator without ATen_CUDA library.
no_gpu | RuntimeError | Found no NVIDIA driver on your system. Please
no_gpu | RuntimeError | Unknown backend: 'gpu' requested, but no
no_gradient | AttributeError | 'float' object has no attribute 'backward'
no_gradient | RuntimeError | element 0 of tensors does not require grad and does not have a grad_fn
no_keyboard | EOFError | EOF when reading a line
no_parameters | ValueError | optimizer got an empty parameter list
no_permission | PermissionError OSError | [Errno 13] Permission denied: '/data/x'
no_process_group | ValueError | Default process group has not been initialized,
not_a_file | IsADirectoryError OSError | [Errno 21] Is a directory: '/tmp'
not_a_file | NotADirectoryError OSError | [Errno 20] Not a directory: '/etc/passwd/x'
not_a_leaf | ValueError | can't optimize a non-leaf Tensor
not_a_number | FloatingPointError ArithmeticError | invalid value (nan) encountered in log
not_a_number | RuntimeError | Function 'SqrtBackward0' returned nan values in its 0th output.
not_a_number | RuntimeError | loss is NaN at step 3
not_a_number | ValueError | Expected parameter loc (Tensor of shape (1,)) of distribution Normal(loc: tensor([nan]),
not_a_number | ValueError | tensor([nan, nan])
not_a_tensor | TypeError | linear(): argument 'input' (position 1) must be Tensor, not list
not_contiguous | RuntimeError | view size is not compatible with input tensor's
not_implemented | NotImplementedError RuntimeError |
not_implemented | TypeError | Can't instantiate abstract class C with abstract method f
not_ready | AttributeError | cannot assign module before Module.__init__() call
not_ready | NotFittedError ValueError AttributeError | This LinearRegression instance is not fitted
not_ready | ValueError | You are loading weights into a model that has not yet been built.
not_ready | ValueError | You must call `compile()` before using the model.
not_scalar | RuntimeError | Boolean value of Tensor with more than one value is ambiguous
not_scalar | RuntimeError | a Tensor with 3 elements cannot be converted to Scalar
not_scalar | ValueError | The truth value of an array with more than
number_range | OverflowError ArithmeticError | math range error
number_range | ValueError | math domain error
one_class | ValueError | This solver needs samples of at least 2 classes
one_sample | ValueError | Expected more than 1 value per channel when training, got input size
optimizer_option | ValueError | Invalid learning rate: -1
option_value | InvalidParameterError ValueError TypeError | The 'C' parameter of LogisticRegression must be a float
option_value | RuntimeError | Expected one of cpu, cuda, ipu, xpu device type at start of device string: gpu
option_value | ValueError | Could not interpret optimizer identifier: adamm
option_value | ValueError | batch_size should be a positive integer value, but got batch_size=0
option_value | ValueError | sampler option is mutually exclusive with shuffle
option_value | XGBoostError ValueError | [23:21:51] objective.cc:27: Unknown objective function: `foo`
out_of_time | Empty |
out_of_time | OperationalError DatabaseError | database is locked
out_of_time | RuntimeError | DataLoader timed out after 1 seconds
out_of_time | TimeoutError OSError | waiting for lock
pickled_array | ValueError | Object arrays cannot be loaded when allow_pickle=False
pickled_array | ValueError | This file contains pickled (object) data. … using the `allow_pickle=` keyword argument
port_in_use | OSError | [Errno 98] Address already in use
probability_range | RuntimeError | all elements of input should be between 0 and 1
random_key | TypeError | JAX encountered invalid PRNG key data: expected key_data to have ndim, shape, and
read_only | OSError | [Errno 30] Read-only file system: '/x'
read_only_value | AttributeError | property 'a' of 'C' object has no setter
read_only_value | FrozenInstanceError AttributeError | cannot assign to field 'a'
read_only_value | ValueError | assignment destination is read-only
recursion | RecursionError RuntimeError | maximum recursion depth exceeded
sample_size | ValueError | Cannot take a larger sample than population when 'replace=False'
scheduler_steps | ValueError | Tried to step 3 times. The specified number of total steps is 2
second_backward | RuntimeError | Trying to backward through the graph a second time (or directly access
sequence_order | RuntimeError | `lengths` array must be sorted in decreasing order when `enforce_sorted` is True
shape | AssertionError | Size mismatch between tensors
shape | AxisError ValueError IndexError | axis 1 is out of bounds for array of dimension 1
shape | IndexError LookupError | Dimension out of range (expected to be in range of [-1, 0], but got 2)
shape | IndexError LookupError | The shape of the mask [2] at index 0 does not match the shape of the indexed tensor [3]
shape | IndexError LookupError | boolean index did not match indexed array along axis 0; size of axis is 3
shape | InvalidArgumentError | {{function_node __wrapped__MatMul…}} Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]
shape | RuntimeError | Calculated padded input size per channel: (4 x 4). … Kernel size can't be greater than actual
shape | RuntimeError | Given groups=1, weight of size [4, 3, 3,
shape | RuntimeError | Sizes of tensors must match except in dimension
shape | RuntimeError | The expanded size of the tensor (999) must match the existing size
shape | RuntimeError | The size of tensor a (3) must match the size of tensor
shape | RuntimeError | einsum(): subscript j has size 4 for operand 1 which does not broadcast with
shape | RuntimeError | input.size(-1) must be equal to input_size. Expected 3, got 7
matrix_sizes | RuntimeError | mat1 and mat2 shapes cannot be multiplied (8x4 and 5x1)
no_credentials | HTTPError RequestException OSError | 401 Client Error: Unauthorized for url: http://x
no_credentials | OSError | You are trying to access a gated repo. Make sure to have access to it
no_credentials | UsageError | api_key not configured (no-tty). call wandb.login(key=[your_api_key])
no_gradient | ValueError | No gradients provided for any variable.
no_loss | ValueError | The model did not return a loss from the inputs, only the following keys: logits.
not_a_number | InvalidArgumentError | {{function_node __wrapped__CheckNumerics…}} loss : Tensor had NaN values
not_a_tensor | TypeError | Tensor is not a torch image.
not_a_tensor | TypeError | cannot assign 'torch.FloatTensor' as parameter 'weight' (torch.nn.Parameter or None expected)
not_a_tensor | TypeError | int is not a Module subclass
not_a_tensor | TypeError | pic should be PIL Image or ndarray. Got <class 'int'>
not_ready | ValueError | You tried to call `count_params` on layer 'sequential_13', but the layer isn't built.
not_scalar | TypeError | cond_fun must return a boolean scalar, but got output type(s) [ShapedArray(float32[2])].
not_scalar | ValueError | `self.log(x, tensor([1., 1., 1.]))` was called, but the tensor must have a single element.
number_range | RuntimeError | normal expects all elements of std >= 0.0
option_value | LightGBMError | Number of classes should be specified and greater than 1 for multiclass training
option_value | ValueError | Optional arg `num_classes` must be type `int`
option_value | ValueError | Unknown model resnet19
option_value | ValueError | Unrecognized keyword arguments passed to Dense: {'foo': 1}
option_value | XGBoostError ValueError | Invalid Parameter format for learning_rate expect float but value='x'
option_value | XGBoostError ValueError | value -3 for Parameter max_depth should be greater equal to 0
option_value | LightGBMError | Do not support special JSON characters in feature name.
shape | RuntimeError | shape '[4, 7]' is invalid for input of size 30
shape | RuntimeError | stack expects each tensor to be equal size,
shape | TypeError | Cannot concatenate arrays with different numbers of dimensions: got (2,), (2, 2)
shape | TypeError | dot_general requires contracting dimensions to have the same shape,
shape | ValueError | All arrays must be of the same length
shape | ValueError | Data cardinality is ambiguous. Make sure
shape | ValueError | Expected 2D array, got 1D array instead:
shape | ValueError | Found input variables with inconsistent numbers of samples: [2, 1]
shape | ValueError | Input 0 with name 'None' of layer 'dense' is incompatible with
shape | ValueError | Length of values (3) does not match length of index (2)
shape | ValueError | X has 2 features, but LinearRegression is expecting 1 features as input.
shape | ValueError | all the input array dimensions except for the concatenation axis must match exactly,
shape | ValueError | cannot reshape array of size 6 into shape (4,2)
shape | ValueError | expected sequence of length 2 at dim 1 (got 1)
shape | ValueError | matmul: Input operand 1 has a mismatch in its core dimension 0,
shape | ValueError | operands could not be broadcast together with shapes (2,3) (2,4)
shape | ValueError | vmap got inconsistent sizes for array axes to be mapped:
shape | ValueError | x and y must have same first dimension, but have shapes (2,) and (3,)
shape | InvalidArgumentError | Input to reshape is a tensor with 6 values, but the requested shape has 4
shape | LightGBMError | Length of labels differs from the length of #data
shape | RuntimeError | batch1 must be a 3D tensor
shape | RuntimeError | output with shape [1, 4, 4] doesn't match the broadcast shape [3, 4, 4]
shape | ValueError | Computed output size would be zero or negative. Received `inputs shape=(1, 4, 4, 1)`
shape | ValueError | Dimensions 2 and 3 are not compatible
shape | ValueError | Required crop size (32, 32) is larger than input image size (8, 8)
shape | XGBoostError ValueError | Check failed: … : Invalid size for `label`:(2,1). n_samples:4
shape | XGBoostError ValueError | Number of columns does not match number of features in booster.
shared_memory | RuntimeError | DataLoader worker (pid 7) is killed by signal: Bus error. … insufficient shared memory
split_sizes | ValueError | Sum of input lengths does not equal the length of the input dataset!
state_dict | RuntimeError | Error(s) in loading state_dict for Net:
state_dict | TypeError | Expected state_dict to be dict-like, got <class 'list'>.
state_dict | ValueError | loaded state dict contains a parameter group that doesn't match
stored_class | AttributeError | Can't get attribute 'Net' on <module '__main__' (built-in)>
syntax | SyntaxError | invalid syntax (<string>, line 1)
task_cancelled | CancelledError BaseException |
to_numpy | RuntimeError | Can't call numpy() on Tensor that requires grad.
too_many_files | OSError | [Errno 24] Too many open files
too_many_processes | RuntimeError | can't start new thread
traced_value | TracerBoolConversionError ConcretizationTypeError JAXTypeError | Attempted boolean conversion of
traced_value | TypeError | Shapes must be 1D sequences of concrete values of integer type, got (JitTracer
traced_value | TypeError | A symbolic KerasTensor cannot be used as a boolean.
traced_value | ValueError | Non-hashable static arguments are not supported.
traced_value | UnexpectedTracerError JAXTypeError TypeError | Encountered an unexpected tracer.
traced_value | Unsupported TorchDynamoException RuntimeError | Failed to trace builtin operator
trainer_setup | MisconfigurationException | No `training_step()` method defined. Lightning
unpacking | ValueError | too many values to unpack (expected 2)
unseen_category | ValueError | y contains previously unseen labels: np.str_('b')
unused_in_graph | RuntimeError | One of the differentiated Tensors appears to not have been used in the graph.
unused_parameters | RuntimeError | Expected to have finished reduction in the prior iteration before starting a new one.
validation_missing | RuntimeError | Early stopping conditioned on metric `val_loss` which is not available.
validation_missing | ValueError | Must have at least 1 validation dataset for early stopping.
value_type | TypeError | %d format: a real number is required, not str
value_type | TypeError | 'int' object is not subscriptable
value_type | TypeError | can only concatenate str (not "int") to str
value_type | TypeError | unhashable type: 'list'
value_type | ValueError | too many dimensions 'str'
warning_as_error | RuntimeWarning Warning | overflow encountered in exp
weights_only | UnpicklingError PickleError | Weights only load failed. T … Unsupported global: GLOBAL
weights_only | UnpicklingError | Weights only load failed. … WeightsUnpickler error: Unsupported operand 149
worker_lost | BrokenProcessPool BrokenExecutor | A process in the process pool was terminated abruptly
"""
"""Code | class and its bases | what it said. Real messages of Python, NumPy, pandas, PyTorch, Keras, JAX and others."""
CAUSES: Final = {
    Cause.YOUR_DATA: "bad_data bad_value download file_exists file_missing folder_missing missing_values no_permission"
    " not_a_file one_class read_only unseen_category",
    Cause.RESOURCES: "disk_full gpu_library gpu_memory host_memory shared_memory too_many_files too_many_processes",
    Cause.HARDWARE: "disk_broken gpu_lost",
    Cause.EVICTED: "data_worker",
    Cause.PLATFORM: "checkpoints_damaged gpu_busy native_library",
    Cause.UNKNOWN: "connection worker_lost",
}
"""All others are the user's code."""
RETRIED: Final = "connection data_worker disk_broken gpu_busy gpu_lost worker_lost"


def of_line(line: str) -> tuple[str, Failure]:
    """Return the expected code and the failure found."""
    code, names, message = (part.strip() for part in line.split("|"))
    has_gpus, is_alone = code.startswith("gpu"), True
    return code, diagnosis.from_exception(
        [*names.split(), "Exception"], message, where=None, traceback="", is_alone=is_alone, has_gpus=has_gpus
    )


@pytest.mark.parametrize("line", MESSAGES.strip().splitlines())
def test_known_message_has_its_class_its_advice_and_its_retry(line: str) -> None:
    code, found = of_line(line)

    assert found.code == code
    assert found.cause is next((cause for cause, codes in CAUSES.items() if code in codes.split()), Cause.YOUR_CODE)
    assert is_retried(found) == (code in RETRIED.split())
    assert "the log" not in found.advice or code == "command_failed"


@pytest.mark.parametrize(
    ("source", "code", "cause"),
    [
        ("import os\nos.environ['A_NAME_THAT_IS_NOT_SET']", "environment_variable", Cause.YOUR_CODE),
        ("import subprocess\nsubprocess.run(['a-program-that-is-not-there'])", "no_command", Cause.YOUR_CODE),
        ("import ast\nast.literal_eval('[1, 2')", "bad_value", Cause.YOUR_DATA),
        ("import torch\ntorch.save([torch.ones(9)], '/dev/full')", "disk_full", Cause.RESOURCES),
        ("import io, torch\ntorch.load(io.BytesIO(b'hello'))", "bad_data", Cause.YOUR_DATA),
        ("import numpy\nnumpy.save('/no-such-folder/x.npy', [1])", "folder_missing", Cause.YOUR_DATA),
        ("import pathlib\npathlib.Path('/no-such-folder/x').write_text('')", "folder_missing", Cause.YOUR_DATA),
        ("import pathlib\npathlib.Path('/no-such-folder/x').read_text()", "file_missing", Cause.YOUR_DATA),
    ],
)
def test_traceback_adds_to_the_message(source: str, code: str, cause: Cause) -> None:
    try:
        exec(source, {})
    except (KeyError, FileNotFoundError, SyntaxError, RuntimeError) as error:
        names, text = [type(error).__name__, "Exception"], traceback.format_exc()
        found = diagnosis.from_exception(names, str(error), where=None, traceback=text)
        assert (found.code, found.cause) == (code, cause)
    else:
        raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("is killed by signal: Segmentation fault.", "data_worker_crashed"),
        ("is killed by signal: Bus error. It is possible that dataloader's workers are out of", "shared_memory"),
        ("is killed by signal: Killed.", "data_worker"),
        ("exited unexpectedly with exit code 3. Details are lost", "data_worker_crashed"),
    ],
)
def test_end_of_a_data_worker_is_read_from_its_cause(end: str, code: str) -> None:
    text = f"RuntimeError: DataLoader worker (pid 7) {end}\n\nThe above exception was the direct cause of"
    message = "DataLoader worker (pid(s) 7) exited unexpectedly"

    assert diagnosis.from_exception(["RuntimeError"], message, where=None, traceback=text).code == code


def test_line_announcing_the_cause_is_shown_with_the_next() -> None:
    def what(message: str) -> str:
        return diagnosis.from_exception(["ValueError", "Exception"], message, where=None, traceback="").what

    assert what("Error(s) in loading state_dict for Net:\n\tsize mismatch for fc.weight") == (
        "ValueError: Error(s) in loading state_dict for Net: size mismatch for fc.weight"
    )
    assert what("Exception encountered when calling Dense.call().\n\n\x1b[1mInput 0 has 2 axes\x1b[0m\n\nmore") == (
        "ValueError: Exception encountered when calling Dense.call(). Input 0 has 2 axes"
    )
    assert what("one line\nanother") == "ValueError: one line"
    assert what("{{function_node __wrapped__Cast_device_/device:CPU:0}} the cause [Op:Cast]") == (
        "ValueError: the cause [Op:Cast]"
    )


def test_unknown_values_and_types_have_advice_too() -> None:
    for name, message in (("ValueError", "unknown model resnet"), ("TypeError", "unknown kind of sampler: list")):
        found = diagnosis.from_exception([name, "Exception"], message, where=None, traceback="")
        assert found.code == "your_code"
        assert "the log" not in found.advice


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RuntimeError", "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
        ("AcceleratorError", "CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
        ("AssertionError", "Torch not compiled with CUDA enabled"),
        ("RuntimeError", "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False."),
    ],
)
def test_missing_gpu_on_a_cpu_pool_is_a_user_error(name: str, message: str) -> None:
    def found(*, has_gpus: bool) -> Failure:
        return diagnosis.from_exception([name, "Exception"], message, where=None, traceback="", has_gpus=has_gpus)

    assert (found(has_gpus=False).code, found(has_gpus=False).cause) == ("no_gpu", Cause.YOUR_CODE)
    assert "run.device" in found(has_gpus=False).advice
    assert (found(has_gpus=True).code, found(has_gpus=True).cause) == ("gpu_driver", Cause.PLATFORM)


AGAIN = {
    "killed": diagnosis.from_exit(None, signal.SIGKILL),
    "a broken disk": diagnosis.from_exception(["OSError"], "[Errno 5] Input/output error", where=None, traceback=""),
    "an interrupt from outside": diagnosis.from_exit(None, signal.SIGINT),
}
NEVER_AGAIN = {
    "no interpreter": diagnosis.from_exit(127, None),
    "a bug": diagnosis.from_exception(["KeyError", "Exception"], "'x'", where=None, traceback=""),
    "a crash": diagnosis.from_exit(None, signal.SIGSEGV),
    "os._exit(0)": diagnosis.from_exit(0, None),
    "sys.exit(3)": diagnosis.from_exit(3, None),
    "a disk that is read-only": diagnosis.from_exception(
        ["OSError", "Exception"], "[Errno 30] Read-only file system: '/data/x'", where=None, traceback=""
    ),
    "a library for another system": diagnosis.from_exception(
        ["ImportError", "Exception"], "libx.so: cannot open shared object file", where=None, traceback=""
    ),
    "an instruction of another processor": diagnosis.from_exit(None, signal.SIGILL),
    "a full memory": diagnosis.from_exit(None, signal.SIGKILL, out_of_memory=True),
}


@pytest.mark.parametrize("case", AGAIN)
def test_transient_failure_is_retried(case: str) -> None:
    assert is_retried(AGAIN[case])


@pytest.mark.parametrize("case", NEVER_AGAIN)
def test_deterministic_failure_is_not_retried(case: str) -> None:
    assert not is_retried(NEVER_AGAIN[case])


def test_the_same_error_of_many_learners_is_one_failure() -> None:
    same = Failure(cause=Cause.YOUR_CODE, code="your_code", what="ValueError: x", advice="")

    chosen = diagnosis.choose([(3, same), (1, same), (2, same)])

    assert chosen is not None
    assert chosen.raised_by == (1, 2, 3)
