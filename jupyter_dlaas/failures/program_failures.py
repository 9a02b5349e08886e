"""Table of known failures that the user resolves by changing the program, by the raised exception."""

from __future__ import annotations

from typing import Final

from jupyter_dlaas.failures.failure_row import Row
from jupyter_dlaas.wire.protocol import Cause

__all__ = ["CODE_ROWS"]

CODE_ROWS: Final[tuple[Row, ...]] = (
    Row(
        code="module_missing",
        cause=Cause.YOUR_CODE,
        raised=("ModuleNotFoundError",),
        advice="Install the package into the kernel's environment, or send your own module with --include.",
    ),
    Row(
        code="name_missing",
        cause=Cause.YOUR_CODE,
        raised=("NameError",),
        advice="Run the cell that defines the name before the training cell, or define it there.",
    ),
    Row(
        code="import_name",
        cause=Cause.YOUR_CODE,
        raised=("ImportError",),
        message=r"cannot import name",
        advice="The package has no such name: its version differs from what the code expects, or one of your files "
        "has the same name as the package.",
    ),
    Row(
        code="module_missing",
        cause=Cause.YOUR_CODE,
        raised=("ImportError",),
        advice="The message names a package that is missing, too old or broken: install it into the kernel's "
        "environment.",
    ),
    Row(
        code="not_a_number",
        cause=Cause.YOUR_CODE,
        raised=("FloatingPointError",),
        advice="The loss became NaN or infinite: try a smaller learning rate, or clip gradients.",
    ),
    Row(
        code="not_a_number",
        cause=Cause.YOUR_CODE,
        raised=("ValueError", "RuntimeError", "ArithmeticError", "AssertionError"),
        message=r"\b[Nn]a[Nn]s?\b|\bNANs?\b|[Nn]ot finite|[Nn]on-?finite|[Ii]s infinite|contains inf|float infinity",
        advice="A number became NaN or infinite: try a smaller learning rate, clip gradients, and check the data for "
        "missing values.",
    ),
    Row(
        code="state_dict",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError", "ValueError", "KeyError"),
        message=r"loading state_dict|key\(s\) in state_dict|loaded state dict",
        advice="The stored weights belong to a different model: build it with the same layers and sizes, or load with "
        "strict=False and look at what is missing.",
    ),
    Row(
        code="state_dict",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        message=r"Expected state_dict to be dict-like",
        advice="This is not a state_dict, perhaps a whole model or a checkpoint that contains one: print its type(…), "
        "and its keys if it is a dict.",
    ),
    Row(
        code="stored_class",
        cause=Cause.YOUR_CODE,
        raised=("AttributeError",),
        message=r"Can't get attribute '.*' on <module",
        advice="A stored object needs a class or function that the program does not define: define or import it before "
        "this line, or store a state_dict instead of the object.",
    ),
    Row(
        code="weights_only",
        cause=Cause.YOUR_CODE,
        raised=("UnpicklingError",),
        message=r"Weights only load failed",
        advice="The file contains more than weights: save a state_dict, or, if you trust the file, "
        "torch.load(…, weights_only=False).",
    ),
    Row(
        code="pickled_array",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"allow_pickle",
        advice="The file is not a plain numeric array: it contains Python objects or has another format. Look at its "
        "first bytes; if you trust it, np.load(…, allow_pickle=True).",
    ),
    Row(
        code="syntax",
        cause=Cause.YOUR_CODE,
        raised=("SyntaxError",),
        advice="Python cannot parse this line: check its brackets, quotes and colons, and those just before it.",
    ),
    Row(
        code="label_range",
        cause=Cause.YOUR_CODE,
        message=r"Target \S+ is out of bounds|[Aa]ll elements of (target|input) should be between|"
        r"label value of \S+ which is outside the valid range|(label|class)e?s? .*(out of range|out of bounds)"
        r"|Class values must be|Invalid classes inferred",
        advice="A label exceeds the number of classes: labels range from 0 to classes - 1. Compare labels.max() with "
        "the size of the last layer.",
    ),
    Row(
        code="index_range",
        cause=Cause.YOUR_CODE,
        raised=("IndexError", "InvalidArgumentError"),
        message=r"index out of range in self|indices\[.*\] = .* is not in \[",
        advice="An index exceeds the size of the embedding: compare tokens.max() with num_embeddings.",
    ),
    Row(
        code="second_backward",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"backward through the graph a second time",
        advice="The graph of an earlier step is used again: detach() tensors kept from step to step, or call "
        "backward(retain_graph=True) if two losses share one forward pass.",
    ),
    Row(
        code="changed_in_place",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"modified by an inplace operation|leaf Variable that requires grad is being used in an in-place",
        advice="A tensor that backward() needs was changed in place: write x = x + y instead of x += y, or use "
        "torch.no_grad() around changes of parameters.",
    ),
    Row(
        code="no_gradient",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"does not require grad and does not have a grad_fn",
        advice="The loss does not depend on trainable parameters: look for no_grad(), detach(), .item() or "
        "requires_grad=False between model and loss.",
    ),
    Row(
        code="loss_not_scalar",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"grad can be implicitly created only for scalar outputs",
        advice="backward() needs a scalar: reduce the loss first, for example with loss.mean().",
    ),
    Row(
        code="loss_not_scalar",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        message=r"Gradient only defined for scalar-output functions",
        advice="The gradient needs a scalar: reduce the loss first, for example with jnp.mean(loss).",
    ),
    Row(
        code="no_parameters",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"optimizer got an empty parameter list",
        advice="The optimizer has no parameters: assign the layers to attributes of the module, lists of layers as "
        "nn.ModuleList, before model.parameters() is called.",
    ),
    Row(
        code="not_contiguous",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"view size is not compatible",
        advice="The tensor is not contiguous, for example after transpose() or permute(): use .reshape(…) instead of "
        ".view(…).",
    ),
    Row(
        code="copied_result",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"support the deepcopy protocol",
        advice="A model's output cannot be copied with its graph: keep tensor.detach() instead.",
    ),
    Row(
        code="no_process_group",
        cause=Cause.YOUR_CODE,
        raised=("ValueError", "RuntimeError"),
        message=r"[Dd]efault process group has not been initialized",
        advice="The process group of torch.distributed is not initialised (yet), or there is only one learner: check "
        "torch.distributed.is_initialized() first.",
    ),
    Row(
        code="traced_value",
        cause=Cause.YOUR_CODE,
        raised=(
            *("ConcretizationTypeError", "TracerArrayConversionError", "TracerIntegerConversionError"),
            "OperatorNotAllowedInGraphError",
        ),
        advice="Values are not yet known inside a compiled function: use jnp.where, lax.cond or tf.cond instead of "
        "`if`, or mark the argument as static.",
    ),
    Row(
        code="immutable",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        message=r"JAX arrays are immutable|EagerTensor' object does not support item assignment",
        advice="These arrays cannot be changed in place: x = x.at[i].set(value) in JAX, tf.tensor_scatter_nd_update in "
        "TensorFlow.",
    ),
    Row(
        code="to_numpy",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError", "TypeError"),
        message=r"Can't call numpy\(\) on Tensor that requires grad|can't convert .* device type tensor to numpy",
        advice="Use tensor.detach().cpu().numpy().",
    ),
    Row(
        code="dtype",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError", "TypeError", "ValueError", "InvalidArgumentError"),
        message=r"expected (m1 and m2 to have the same dtype|scalar type)|must have the same dtype|the same dtype, but"
        r"|Found dtype \w+ but expected|not implemented for '\w+'|following scalar types|result type .* can't be cast"
        r"|[Cc]annot cast|floating point (and|or) complex dtype|can't convert np\.ndarray of type"
        r"|Input type \((?!.*cuda).*should be the same|could not infer input dtype|expected to be a \w+ tensor but is a"
        r"|Input dtype must be|expected target dtype|real- or complex-valued inputs|Invalid dtype: object",
        advice="Two tensors have different types, or a type that the operation does not support: use .float() or "
        ".long() just before this line. Class labels are .long(), inputs .float().",
    ),
    Row(
        code="device_mix",
        cause=Cause.YOUR_CODE,
        message=r"Expected all tensors to be on the same device|is not on the expected device|on the same device"
        r"|Input type .* and weight type|[Ee]xpected .*device.* but (got|found)"
        r"|tensors? .*on (cpu|cuda).* (other|and) .*(cpu|cuda)",
        advice="Model and data are on different devices: move both to run.device.",
    ),
    Row(
        code="read_only_value",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"(destination|array|buffer|memory) is read-only",
        advice="This array is read-only, for example a view of a file or of a DataFrame: change a copy, x = x.copy().",
    ),
    Row(
        code="read_only_value",
        cause=Cause.YOUR_CODE,
        raised=("AttributeError",),
        message=r"cannot assign to field|has no setter|can't set attribute|is read-only",
        advice="This attribute cannot be assigned: make a changed copy, such as by dataclasses.replace, or change its "
        "class.",
    ),
    Row(
        code="one_sample",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"more than 1 value per channel when training",
        advice="BatchNorm cannot train on a batch of one sample: use a larger batch, or DataLoader(drop_last=True).",
    ),
    Row(
        code="label_shape",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError", "ValueError"),
        message=r"multi-target not supported|1D target must have size|`?target`? and `?output`? must have the same rank"
        r"|[Uu]sing a target size",
        advice="Labels and output differ in shape. Class numbers have one dimension: labels.squeeze(1), or "
        "labels.argmax(1) if they are one-hot. Otherwise use the same shape for both.",
    ),
    Row(
        code="not_scalar",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError", "ValueError", "TypeError"),
        message=r"truth value of an? \w+|Boolean value of Tensor|elements cannot be converted to Scalar"
        r"|one element tensors can be converted|(length-1|0-dimensional|size-1) arrays",
        advice="This line needs a single number or truth value, not an array: reduce it, such as by .mean(), .any() "
        "or an index.",
    ),
    Row(
        code="shape",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError", "ValueError", "InvalidArgumentError", "TypeError", "IndexError"),
        message=r"mat1 and mat2 shapes|size mismatch|must match the size of tensor|shapes? .*not aligned"
        r"|Expected .*size|is invalid for input of size|Sizes of tensors must match"
        r"|each tensor to be equal size|to match target batch"
        r"|weight of size|channels|could not be broadcast|Incompatible shapes|Dimensions must be equal"
        r"|mismatch in its core dimension|inconsistent numbers of samples|inhomogeneous shape|is incompatible with"
        r"|[Ee]xpected \d+D|Dimension out of range|[Ii]ncompatible shapes|cannot reshape|the same shape|same rank"
        r"|[Kk]ernel size can't be greater|Output size is too small|must match (exactly|the existing size)"
        r"|must be equal to input_size|Matrix size-incompatible|same number of samples|cardinality|too many indices"
        r"|expected sequence of length|dimension mismatch|must have size \d|expected dim|boolean index did not match"
        r"|shape of the mask|of the same length|Length of values|is expecting \d+ features"
        r"|out of bounds for array of dim",
        advice="The shapes of two tensors do not match. Print them just before this line.",
    ),
    Row(
        code="not_picklable",
        cause=Cause.YOUR_CODE,
        message=r"[Cc]an't (get|pickle)|[Cc]annot pickle|Can't get local object",
        advice="Worker processes need picklable objects: define functions and classes at the top level of a cell, "
        "not as a lambda or inside a function; or use num_workers=0.",
    ),
    Row(
        code="main_guard",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"before the\s+current process has finished its bootstrapping",
        advice="Each worker process runs the program again: put the code that starts them under "
        '`if __name__ == "__main__":`.',
    ),
    Row(
        code="closed_file",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"I/O operation on closed file|(read|seek|write) of closed file",
        advice="The file was closed before this line: move the line into its `with` block, or open the file again.",
    ),
    Row(
        code="encoding",
        cause=Cause.YOUR_CODE,
        raised=("UnicodeEncodeError",),
        advice='The encoding has no such character: open the file with encoding="utf-8".',
    ),
    Row(
        code="command_failed",
        cause=Cause.YOUR_CODE,
        raised=("CalledProcessError",),
        advice="A command that the program calls failed: run it separately in a cell. Its output is in the log.",
    ),
    Row(
        code="empty_data",
        cause=Cause.YOUR_CODE,
        raised=("ValueError", "RuntimeError", "IndexError", "TypeError"),
        message=r"num_samples should be a positive integer|No objects to concatenate|need at least one array"
        r"|with 0 sample|empty (sequence|iterable|data ?set|list of)|zero-size array"
        r"|non-empty TensorList|n_samples=0|is empty$|set will be empty",
        advice="A data set, filter or split is empty. Print its length just before this line.",
    ),
    Row(
        code="port_in_use",
        cause=Cause.YOUR_CODE,
        raised=("OSError", "RuntimeError"),
        message=r"Address already in use|EADDRINUSE",
        advice="Another process uses this port: let the system choose one (port 0).",
    ),
    Row(
        code="unused_parameters",
        cause=Cause.YOUR_CODE,
        message=r"Expected to have finished reduction in the prior iteration",
        advice='Some parameters did not contribute to the loss: run.prepare(…, ddp={"find_unused_parameters": True}).',
    ),
    Row(
        code="interrupted",
        cause=Cause.EVICTED,
        raised=("KeyboardInterrupt",),
        advice="A user interrupted the process. The job restarts from the last checkpoint.",
        what="the learner's process was interrupted",
    ),
    Row(
        code="is_none",
        cause=Cause.YOUR_CODE,
        raised=("AttributeError", "TypeError"),
        message=r"'?NoneType'?",
        advice="A value is None here, often from a function without `return`, or a gradient before backward().",
    ),
    Row(
        code="not_ready",
        cause=Cause.YOUR_CODE,
        raised=("NotFittedError",),
        advice="The estimator is not fitted yet: call fit() before this line.",
    ),
    Row(
        code="not_ready",
        cause=Cause.YOUR_CODE,
        raised=("ValueError", "RuntimeError", "AttributeError"),
        message=r"must call `?(compile|build|fit)|not (been )?(fitted|compiled|built) yet"
        r"|has never been (called|built)",
        advice="A step is missing before this line: compile, build or fit the object first.",
    ),
    Row(
        code="trainer_setup",
        cause=Cause.YOUR_CODE,
        raised=("MisconfigurationException",),
        advice="The trainer and the module are incompatible: the message names the method or option that is missing "
        "or wrong.",
    ),
    Row(
        code="not_ready",
        cause=Cause.YOUR_CODE,
        raised=("AttributeError",),
        message=r"before Module\.__init__\(\) call",
        advice="The module is not initialised yet: call super().__init__() first in its __init__.",
    ),
    Row(
        code="attribute_missing",
        cause=Cause.YOUR_CODE,
        raised=("AttributeError",),
        advice="The object has no such attribute: check the spelling and the version of the package that the "
        "code was written for.",
    ),
    Row(
        code="not_implemented",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        message=r"Can't instantiate abstract class",
        advice="The class does not define the methods that the message names.",
    ),
    Row(
        code="arguments",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        message=r"positional argument|keyword argument|multiple values for|not callable",
        advice="The arguments do not match the function: compare them with its definition.",
    ),
    Row(
        code="value_type",
        cause=Cause.YOUR_CODE,
        raised=("TypeError", "ValueError"),
        message=r"can only concatenate|unsupported operand|not supported between instances|bad operand type|must be str"
        r"|must be real number|too many dimensions 'str'|can't multiply sequence",
        advice="The operands have incompatible types: print type(…) of both. Convert text to a number with "
        "int(…) or float(…).",
    ),
    Row(
        code="value_type",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        message=r"object is not (iterable|subscriptable|an iterator)|does not support item|has no len\(\)"
        r"|indices must be|unhashable type|cannot unpack|object cannot be interpreted as an integer",
        advice="The value does not have the type that this line expects: print its type(…).",
    ),
    Row(
        code="unpacking",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"values to unpack",
        advice="The number of values does not match the number of names: print the length, for a loader "
        "len(next(iter(loader))).",
    ),
    Row(
        code="number_range",
        cause=Cause.YOUR_CODE,
        raised=("OverflowError", "ValueError"),
        message=r"math (domain|range) error|[Rr]esult too large|too large to convert|out of bounds for u?int\d"
        r"|expected a (positive|nonnegative) input",
        advice="A number is outside the function's domain, such as log(0) or exp(1000): print it just before this "
        "line.",
    ),
    Row(
        code="changed_while_iterated",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"changed size during iteration|mutated during iteration",
        advice="A collection changes during iteration: iterate over a copy, list(…).",
    ),
    Row(
        code="exhausted",
        cause=Cause.YOUR_CODE,
        raised=("StopIteration",),
        advice="The iterator has no more items: create a new one for each epoch, or loop with `for`.",
    ),
    Row(
        code="linear_algebra",
        cause=Cause.YOUR_CODE,
        raised=("LinAlgError", "_LinAlgError"),
        advice="The matrix cannot be inverted or decomposed: columns may depend on each other, or values are not "
        "finite. Add a small multiple of the identity, or use lstsq or pinv.",
    ),
    Row(
        code="environment_variable",
        cause=Cause.YOUR_CODE,
        raised=("KeyError",),
        traced=r"<frozen os>|/os\.py",
        advice="The job has no such environment variable: set it with --env NAME=VALUE, or a secret with "
        "--secret NAME.",
    ),
    Row(
        code="key_missing",
        cause=Cause.YOUR_CODE,
        raised=("KeyError",),
        advice="The key does not exist: print the keys or columns just before this line.",
    ),
    Row(
        code="index_range",
        cause=Cause.YOUR_CODE,
        raised=("IndexError",),
        advice="The index is out of range: print the length or shape just before this line.",
    ),
    Row(
        code="index_range",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"index -?\d+ is out of bounds",
        advice="The index is out of range: print the length or shape just before this line.",
    ),
    Row(
        code="division_by_zero",
        cause=Cause.YOUR_CODE,
        raised=("ZeroDivisionError",),
        advice="A frequent cause is an empty data set or loader: print its length just before this line.",
    ),
    Row(
        code="recursion",
        cause=Cause.YOUR_CODE,
        raised=("RecursionError",),
        advice="A function calls itself endlessly: look for the lines that repeat in the traceback.",
    ),
    Row(
        code="assertion",
        cause=Cause.YOUR_CODE,
        raised=("AssertionError",),
        advice="A condition that the code requires is false: print its values just before this line.",
    ),
    Row(
        code="out_of_time",
        cause=Cause.YOUR_CODE,
        raised=("TimeoutError",),
        advice="The program waited too long for a server, a lock or another process.",
    ),
    Row(
        code="out_of_time",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"DataLoader timed out",
        advice="A DataLoader worker took longer than its timeout: raise timeout=…, or use num_workers=0 to see which "
        "line takes long.",
    ),
    Row(
        code="out_of_time",
        cause=Cause.YOUR_CODE,
        raised=("OperationalError",),
        message=r"database is locked",
        advice="Another process writes to this database: give each process a file of its own, or raise timeout=….",
    ),
    Row(
        code="not_implemented",
        cause=Cause.YOUR_CODE,
        raised=("NotImplementedError",),
        advice="The class does not implement this method, or the device does not support the operation.",
    ),
    Row(
        code="your_code",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        advice="The call does not accept one of these values; see the message. Print the values in this line.",
    ),
    Row(
        code="your_code",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        advice="A value has a type that this call does not accept: print type(…) of the values in this line.",
    ),
    Row(
        code="your_code",
        cause=Cause.YOUR_CODE,
        raised=("Exception",),
        advice="See the message. Print the values in this line just before it.",
    ),
)
