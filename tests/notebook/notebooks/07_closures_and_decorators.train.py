# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
import functools

OFFSET = 3


# --- cell [2] ---
def traced(function):
    @functools.wraps(function)
    def inner(*args):
        CALLS.append(function.__name__)
        return function(*args)

    return inner


# --- cell [3] ---
CALLS = []


# --- cell [4] ---
def make_adder(n):
    def add(x, by=OFFSET):
        return x + n + by

    return add


# --- cell [5] ---
add_five = make_adder(5)


@traced
def ladder(n):
    return 0 if n == 0 else step(n) + ladder(n - 1)


# --- cell [6] ---
def step(n):
    return n * OFFSET


# --- cell [7] ---
height = ladder(3)
twice = functools.partial(pow, 2)
OFFSET = 100

# --- cell [8] ---
squared = lambda x: x * x + OFFSET

# --- cell [9], the training cell ---
if __name__ == "__main__":
    print(height, ladder(2), add_five(1), twice(3), squared(2), CALLS)
