# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
import json

items = [1, 2]


# --- cell [2] ---
def parse(text):
    return json.loads(text)


# --- cell [3] ---
parsed = parse("[1, 2]")

# --- cell [4] ---
text = json.dumps(parsed)

# --- cell [5], the training cell ---
if __name__ == "__main__":
    print(items, parsed, text, parse("{}"))
