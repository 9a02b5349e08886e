"""Table of known failures of Python programs, which the user resolves by changing the program."""

from __future__ import annotations

from typing import Final

from jupyter_dlaas.failures.failure_row import Row
from jupyter_dlaas.wire.protocol import Cause

__all__ = ["CODE_ROWS"]

CODE_ROWS: Final[tuple[Row, ...]] = (
    Row(
        code="module_hidden",
        cause=Cause.YOUR_CODE,
        raised=("ModuleNotFoundError",),
        message=r"is not a package$",
        advice="The first name is a single file: if it is one of yours, it hides a package of the same name, so rename "
        "it; otherwise check the name of the submodule.",
    ),
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
        code="stored_class",
        cause=Cause.YOUR_CODE,
        raised=("AttributeError",),
        message=r"Can't get attribute '.*' on <module",
        advice="A stored object needs a class or function that the program does not define: define or import it before "
        "this line, or store a state_dict instead of the object.",
    ),
    Row(
        code="syntax",
        cause=Cause.YOUR_CODE,
        raised=("SyntaxError",),
        advice="Python cannot parse this line: check its brackets, quotes and colons, and those just before it.",
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
        code="not_picklable",
        cause=Cause.YOUR_CODE,
        message=r"[Cc]an't (get|pickle)|[Cc]annot pickle|Can't get local object",
        advice="Lambdas, and functions and classes that are defined inside a function, cannot be pickled: define them "
        "at the top level of a cell. For the workers of a DataLoader, num_workers=0 also helps.",
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
        code="program_arguments",
        cause=Cause.YOUR_CODE,
        raised=("SystemExit",),
        traced=r"argparse\.py",
        advice="argparse rejected the program's arguments: in a notebook call parse_args([]); for a script, pass them "
        "after `--`.",
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
        code="split_sizes",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"Sum of input lengths does not equal",
        advice="The sizes of the parts do not add up: compute the last one as len(dataset) minus the others, or use "
        "fractions.",
    ),
    Row(
        code="batch_content",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        message=r"default_collate: batch must contain",
        advice="The dataset returns something that cannot be put into a batch, such as None or an image: return "
        "tensors or numbers, or pass collate_fn to the DataLoader.",
    ),
    Row(
        code="unseen_category",
        cause=Cause.YOUR_DATA,
        raised=("ValueError",),
        message=r"Found unknown categories|previously unseen label",
        advice="The data has a category that was not in the training data: fit the encoder on all categories, or use "
        'handle_unknown="ignore".',
    ),
    Row(
        code="metric_labels",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"Target is multiclass but|multi_class must be in|can't handle a mix of|(multiclass|multilabel"
        r"|continuous)\S* format is not supported",
        advice="The metric does not fit these labels: pass class numbers, not probabilities, and choose average=… or "
        "multi_class=… for more than two classes.",
    ),
    Row(
        code="option_value",
        cause=Cause.YOUR_CODE,
        raised=("ValueError", "TypeError", "RuntimeError", "XGBoostError", "LightGBMError"),
        message=r"The '\w+' parameter of \w+ must be|Invalid parameter '?\w+'? for estimator"
        r"|batch_size should be a positive"
        r"|Could not interpret \w+ identifier|Received an invalid value for|Invalid filepath extension"
        r"|Unknown objective"
        r"|num_workers option should be|is mutually exclusive with|requires either a"
        r"|requires the save and eval strategy"
        r"|`devices` selected with|Expected one of cpu, cuda|Invalid Parameter format for|for Parameter \w+ should be"
        r"|[Oo]ptional arg `\w+` must be|\w+ option should be|^Unknown (model|layer|loss|metric)"
        r"|Unrecognized keyword arguments passed to|Number of classes should be specified"
        r"|special JSON characters in feature name",
        advice="An option has a wrong name or value, or does not go with another: the message names it.",
    ),
    Row(
        code="validation_missing",
        cause=Cause.YOUR_CODE,
        raised=("ValueError", "RuntimeError", "MisconfigurationException"),
        message=r"[Ee]arly stopping.*(dataset|not available)|validation dataset for early stopping"
        r"|could not find the monitored key",
        advice="Early stopping and the choice of the best checkpoint need a metric of a validation set: pass one, and "
        "monitor a name that the training reports.",
    ),
    Row(
        code="no_loss",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"did not return a loss from the inputs|specify exactly one of input_ids",
        advice="The batches lack a column that the model needs: name the labels `labels`, and tokenise the texts into "
        "`input_ids`. Columns whose names the model's forward() lacks are dropped.",
    ),
    Row(
        code="sample_size",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"larger sample than population|[Ss]ample larger than population",
        advice="More elements are drawn than there are: draw at most the size of the collection, or with replacement.",
    ),
    Row(
        code="empty_data",
        cause=Cause.YOUR_CODE,
        raised=("ValueError", "RuntimeError", "IndexError", "TypeError"),
        message=r"num_samples should be a positive integer|No objects to concatenate|need at least one array"
        r"|with 0 sample|empty (sequence|iterable|data ?set|list of)|zero-size array"
        r"|non-empty TensorList|n_samples=0|is empty$|set will be empty|requires a train_dataset",
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
        code="no_gradient",
        cause=Cause.YOUR_CODE,
        raised=("AttributeError",),
        message=r"'(float|int|ndarray|float32|float64)' object has no attribute 'backward'",
        advice="The loss is a number, not a tensor: call .item(), float() or .numpy() only on what is logged.",
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
        message=r"must call `?(compile|build|fit)|not (been )?(fitted|compiled|built) yet|not yet been built"
        r"|has never been (called|built)|the layer isn't built",
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
        r"|must be real number|a real number is required|did not contain a loop with|too many dimensions 'str'"
        r"|can't multiply sequence",
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
        raised=("OverflowError", "ValueError", "RuntimeError"),
        message=r"math (domain|range) error|[Rr]esult too large|too large to convert|out of bounds for u?int\d"
        r"|expected a (positive|nonnegative) input|expects all elements of std|expects 'from' to be less than",
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
        raised=("MergeError",),
        message=r"No common columns",
        advice="The tables have no common column: name the columns with on=…, or left_on=… and right_on=….",
    ),
    Row(
        code="key_missing",
        cause=Cause.YOUR_CODE,
        raised=("OperationalError", "DatabaseError"),
        message=r"no such (table|column)",
        advice="The database has no such table or column: list its tables, and check its path. Connecting to a path "
        "that does not exist creates an empty database.",
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
        code="out_of_time",
        cause=Cause.YOUR_CODE,
        raised=("Empty", "Full"),
        advice="The queue stayed empty or full: the thread or process at its other end is slow, or has ended with an "
        "error of its own.",
    ),
    Row(
        code="task_cancelled",
        cause=Cause.YOUR_CODE,
        raised=("CancelledError",),
        advice="A task or future was cancelled before it had a result, often because another one failed first or a "
        "time limit passed: look for .cancel() and for timeouts.",
    ),
    Row(
        code="not_implemented",
        cause=Cause.YOUR_CODE,
        raised=("NotImplementedError",),
        advice="The class does not implement this method, or the device does not support the operation.",
    ),
    Row(
        code="warning_as_error",
        cause=Cause.YOUR_CODE,
        raised=("Warning",),
        advice="A filter turns this warning into an error: resolve its cause, or exclude it, such as by "
        'warnings.filterwarnings("default", category=…).',
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
