# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
steps = 0
seen = []
state = {"best": None}


# --- cell [2] ---
def advance(n=1):
    global steps
    steps += n
    seen.append(steps)


# --- cell [3] ---
def counter():
    count = 0

    def up():
        nonlocal count
        count += 1
        return count

    return up


# --- cell [4] ---
advance()
advance(4)

# --- cell [5] ---
tick = counter()
ticks = [tick() for _ in range(3)]


# --- cell [6] ---
def note(value):
    state["best"] = value


note(0.5)


# --- cell [7] ---
def peek():
    return steps


# --- cell [9], the training cell ---
if __name__ == "__main__":
    advance()
    print(steps, seen, state, ticks, peek())
