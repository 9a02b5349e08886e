"""Table of known failures of models, tensors and arrays, which the user resolves by changing the program."""

from __future__ import annotations

from typing import Final

from jupyter_dlaas.failures.failure_row import Row
from jupyter_dlaas.wire.protocol import Cause

__all__ = ["TENSOR_ROWS"]

TENSOR_ROWS: Final[tuple[Row, ...]] = (
    Row(
        code="not_a_number",
        cause=Cause.YOUR_CODE,
        raised=("FloatingPointError",),
        advice="The loss became NaN or infinite: try a smaller learning rate, or clip gradients.",
    ),
    Row(
        code="not_a_number",
        cause=Cause.YOUR_CODE,
        raised=("ValueError", "RuntimeError", "ArithmeticError", "AssertionError", "InvalidArgumentError"),
        message=r"\b[Nn]a[Nn]s?\b|\bNANs?\b|[Nn]ot finite|[Nn]on-?finite|[Ii]s infinite|contains inf|float infinity",
        advice="A number became NaN or infinite: try a smaller learning rate, clip gradients, and check the data for "
        "missing values.",
    ),
    Row(
        code="sequence_order",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"sorted in decreasing order",
        advice="Sort the batch by length, longest first, or pass enforce_sorted=False.",
    ),
    Row(
        code="scheduler_steps",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"Tried to step \d+ times|You must define either total_steps",
        advice="The learning-rate scheduler must know how often it steps: total_steps is the number of epochs, times "
        "len(loader) if step() is called for each batch.",
    ),
    Row(
        code="optimizer_option",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"Invalid (learning rate|momentum|weight_decay|epsilon|beta|alpha|rho|lr_decay|dampening|clamping)",
        advice="An option of the optimizer is outside of its range, often a negative or exchanged value: compare it "
        "with the optimizer's documentation.",
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
        code="probability_range",
        cause=Cause.YOUR_CODE,
        raised=(
            "RuntimeError",
            "ValueError",
        ),
        message=r"all elements of input should be between 0 and 1",
        advice="The loss expects probabilities, but the model returns values outside of 0 to 1: apply torch.sigmoid, "
        "or use BCEWithLogitsLoss.",
    ),
    Row(
        code="label_range",
        cause=Cause.YOUR_CODE,
        message=r"Target \S+ is out of bounds|[Aa]ll elements of target should be between|"
        r"label value of \S+ which is outside the valid range|(label|class)e?s? .*(out of range|out of bounds)"
        r"|Class values must be|Invalid classes inferred|[Ll]abel must be (discrete values )?in (the range of )?\[",
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
        raised=("ValueError",),
        message=r"No gradients provided for any variable",
        advice="The loss does not depend on trainable variables: compute it from the model's output within the "
        "GradientTape, and look for trainable=False and .numpy().",
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
        code="not_a_leaf",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"can't optimize a non-leaf Tensor",
        advice="The optimizer got the result of a computation: move or convert a tensor first, then call "
        "requires_grad_() on it, and give this one to the optimizer.",
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
        code="unused_in_graph",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"appears to not have been used in the graph",
        advice="A tensor does not take part in this result: compute the result from it, or pass allow_unused=True.",
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
        code="traced_value",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        message=r"Shapes must be 1D sequences of concrete values",
        advice="Sizes must be known when a function is compiled: mark the argument as static, with static_argnums=….",
    ),
    Row(
        code="traced_value",
        cause=Cause.YOUR_CODE,
        raised=("UnexpectedTracerError",),
        advice="A compiled function stored a value outside of itself, for example in a list or an attribute: return it "
        "instead.",
    ),
    Row(
        code="traced_value",
        cause=Cause.YOUR_CODE,
        raised=("TorchDynamoException",),
        message=r"[Gg]raph break|Failed to trace|fullgraph",
        advice="torch.compile cannot compile this line: move it out of the compiled function, or compile without "
        "fullgraph=True.",
    ),
    Row(
        code="traced_value",
        cause=Cause.YOUR_CODE,
        raised=("ValueError",),
        message=r"Non-hashable static arguments",
        advice="Static arguments must be hashable: pass a tuple instead of a list, or a frozen dataclass.",
    ),
    Row(
        code="traced_value",
        cause=Cause.YOUR_CODE,
        raised=("TypeError", "ValueError"),
        message=r"symbolic KerasTensor|KerasTensor cannot be|must be KerasTensors",
        advice="Values are not yet known while a Keras model is built: use layers and keras.ops instead of `if`, NumPy "
        "and tf functions.",
    ),
    Row(
        code="donated_array",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"Array has been deleted|buffer has been deleted or donated",
        advice="The array was donated to a compiled function (donate_argnums) and cannot be used again: use what the "
        "function returns.",
    ),
    Row(
        code="random_key",
        cause=Cause.YOUR_CODE,
        raised=("TypeError", "ValueError"),
        message=r"invalid PRNG key|[Uu]nexpected PRNG key",
        advice="This function needs a random key, not a number: jax.random.key(seed), split once per use.",
    ),
    Row(
        code="branch_types",
        cause=Cause.YOUR_CODE,
        raised=("TypeError", "ValueError"),
        message=r"scan body output must be a pair|must have (equal|identical|the same) (output )?types?"
        r"|pytree structure error"
        r"|carry (input and carry output|output and input)",
        advice="The functions of scan, cond and while_loop must return the structure and types that they got, and "
        "trees that are combined must have the same keys: compare both.",
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
        r"|Input dtype must be|expected target dtype|real- or complex-valued inputs|Invalid dtype: (object|str)"
        r"|only applicable to index tensor|should be a float tensor|not a valid JAX array type|is a subdtype of"
        r"|Unsupported object type",
        advice="Two tensors have different types, or a type that the operation does not support: use .float() or "
        ".long() just before this line. Class labels are .long(), inputs .float().",
    ),
    Row(
        code="not_a_tensor",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        message=r"must be Tensor, not|expected Tensor as element|new\(\): data must be a sequence|not a torch image"
        r"|(pic|img) should be (PIL|Tensor)|should be Tensor Image",
        advice="This call needs a tensor: convert lists by torch.tensor(…), arrays by torch.from_numpy(…), and "
        "images in the dataset by a transform such as ToTensor().",
    ),
    Row(
        code="not_a_tensor",
        cause=Cause.YOUR_CODE,
        raised=("TypeError",),
        message=r"cannot assign '.*' as (parameter|child module)|is not a Module subclass",
        advice="A module's parameters and layers need these types: wrap a tensor in nn.Parameter(…), pass layers as "
        "instances such as nn.ReLU(), and a list of them as nn.Sequential(*layers).",
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
        code="head_size",
        cause=Cause.YOUR_CODE,
        raised=("ValueError", "AssertionError"),
        message=r"multiple of the number of attention heads|must be divisible by num_heads",
        advice="The size of the model must be a multiple of its number of attention heads.",
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
        r"|[Uu]sing a target size|Target size .* must be the same as input size",
        advice="Labels and output differ in shape. Class numbers have one dimension: labels.squeeze(1), or "
        "labels.argmax(1) if they are one-hot. Otherwise use the same shape for both.",
    ),
    Row(
        code="class_weights",
        cause=Cause.YOUR_CODE,
        raised=(
            "RuntimeError",
            "ValueError",
        ),
        message=r"weight tensor should be defined either for all",
        advice="The loss has weights for another number of classes: give one weight for each output of the model.",
    ),
    Row(
        code="not_scalar",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError", "ValueError", "TypeError"),
        message=r"truth value of an? \w+|Boolean value of Tensor|elements cannot be converted to Scalar"
        r"|one element tensors can be converted|(length-1|0-dimensional|size-1) arrays|must return a boolean scalar"
        r"|must have a single element",
        advice="This line needs a single number or truth value, not an array: reduce it, such as by .mean(), .any() "
        "or an index.",
    ),
    Row(
        code="matrix_sizes",
        cause=Cause.YOUR_CODE,
        raised=("RuntimeError",),
        message=r"mat1 and mat2 shapes cannot be multiplied|must have same reduction dim",
        advice="The two inner sizes must be equal. In a linear layer, the first shape is its input: set in_features to "
        "the input's last size, or flatten the input before the layer.",
    ),
    Row(
        code="shape",
        cause=Cause.YOUR_CODE,
        raised=(
            *("RuntimeError", "ValueError", "InvalidArgumentError", "TypeError", "IndexError", "AssertionError"),
            "LightGBMError",
        ),
        message=r"size mismatch|must match the size of tensor|shapes? .*not aligned"
        r"|Expected .*size|is invalid for input of size|Sizes of tensors must match"
        r"|each tensor to be equal size|to match target batch"
        r"|weight of size|channels|could not be broadcast|Incompatible shapes|Dimensions must be equal"
        r"|mismatch in its core dimension|inconsistent numbers of samples|inhomogeneous shape|is incompatible with"
        r"|[Ee]xpected \d+D|Dimension out of range|[Ii]ncompatible shapes|cannot reshape|the same shape|same rank"
        r"|[Kk]ernel size can't be greater|Output size is too small|must match (exactly|the existing size)"
        r"|must be equal to input_size|Matrix size-incompatible|same number of samples|cardinality|too many indices"
        r"|expected sequence of length|dimension mismatch|must have size \d|expected dim|boolean index did not match"
        r"|shape of the mask|of the same length|Length of values|is expecting \d+ features"
        r"|out of bounds for array of dim|does not broadcast|number of dimensions|equal to d_model"
        r"|must have same first dimension|different numbers of dimensions|inconsistent sizes|matching shapes"
        r"|Invalid shape .* for image data|Size mismatch between tensors|Invalid size for `\w+`"
        r"|[Nn]umber of (columns|features) .*(does not match|is not the same)|differs from the length of"
        r"|match the broadcast shape|must be a \dD tensor|Zero-dimensional arrays|axis to squeeze out which has size"
        r"|larger than input image size|output size would be zero or negative|but the requested shape has"
        r"|Dimensions \d+ and \d+ are not compatible|Shape mismatch",
        advice="The shapes of two tensors do not match. Print them just before this line.",
    ),
)
