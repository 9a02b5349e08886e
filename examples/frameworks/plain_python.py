"""Any Python program. It checks whether it should stop, saves its state, and loads it when it resumes."""

import json
import random

import jupyter_dlaas as dlaas

run = dlaas.run()
path = run.output_dir / "walk.json"
found = json.loads(path.read_text()) if path.exists() else {"place": 0, "step": 0}
while found["step"] < 1_000_000 and not run.should_stop:
    found["place"] += random.Random(found["step"]).choice((-1, 1))
    found["step"] += 1
path.write_text(json.dumps(found))

place, step = found["place"], found["step"]
print(f"step {step}: {place}")
