"""From a notebook to a job: capture (pure), what the kernel knows, objects sent by value, the magics, the output.

`capture.py` and what it imports (`records`, `cells`, `names`, `effects`, `tracing`, `slicing`, `render`, `preflight`)
decide and never execute, import or read anything of the user's. `kernel.py` and `push.py` are the shell around them.
"""
