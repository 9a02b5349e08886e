"""Values that a second run would not give again come from the kernel, or are reported before the job starts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from jupyter_dlaas.analysis.model import Capture, ExecutedCell, KernelFacts, NameFact, TrainingCell
from jupyter_dlaas.capture.capture import capture

LARGE = NameFact(type_name="numpy.ndarray", size_bytes=10_000)
TEXTS = NameFact(type_name="list", has_text=True)
NUMBERS = NameFact(type_name="list")
FUNCTION = NameFact(type_name="function", is_callable=True, is_immutable=True)


def small(text: str, kind: str = "str") -> NameFact:
    return NameFact(type_name=kind, literal=text, has_text=kind == "str")


def job(
    *cells: str,
    train: str,
    names: Mapping[str, NameFact],
    push: tuple[str, ...] = (),
    hash_seed: str | None = None,
    with_cells: tuple[int, ...] = (),
) -> Capture:
    """Return a job of cells that ran before the extension was loaded: its random streams are unknown."""
    ran = [ExecutedCell(count=n, source=source) for n, source in enumerate(cells, 1)]
    training = TrainingCell(count=len(cells) + 1, source=train, push=push, with_cells=with_cells)
    return capture(ran, training, KernelFacts(names=names, hash_seed=hash_seed))


def warned(made: Capture) -> list[str]:
    assert made.is_ready, made.errors
    return [problem.message for problem in made.warnings if problem.code == "drawn_again"]


@pytest.mark.parametrize(
    "cell",
    [
        "from sklearn.model_selection import train_test_split\nx = train_test_split(range(9))",
        "from sklearn.model_selection import train_test_split as split\nx = split(range(9), random_state=None)",
        "import sklearn.model_selection as ms\nx = list(ms.KFold(3, shuffle=True).split(range(9)))",
        "from sklearn.model_selection import KFold\nk = KFold(3, shuffle=True)\nx = list(k.split(range(9)))",
        "from sklearn.datasets import make_moons\nx = make_moons(100)",
        "from sklearn.utils import shuffle\nx = shuffle(range(9))",
        "import torch\nx, y = torch.utils.data.random_split(range(9), [5, 4])",
        "from torch.utils.data import random_split\nx = random_split(range(9), [5, 4])",
        "import torch\nx = torch.randperm(9)",
        "import torch\nx = torch.empty(3).uniform_()",
        "import tensorflow as tf\nx = tf.random.normal((3,))",
        "import numpy as np\nx = np.random.permutation(9)",
        "import numpy.random as npr\nx = npr.rand(3)",
        "import numpy as np\nrng = np.random.default_rng()\nx = rng.permutation(9)",
        "import numpy as np\nx = np.random.default_rng().permutation(9)",
        "import random\nx = []\nfor i in range(9):\n    x.append(random.random())",
        "from random import sample\nx = sample(range(9), 3)",
        "import random\nx = sorted(range(9), key=lambda i: random.random())",
        "import random\nx = [3, 1, 2]\nrandom.shuffle(x)",
        "import pandas as pd\nx = pd.DataFrame().sample(frac=1)",
        "import random\ndef draw(n):\n    return [random.random() for _ in range(n)]\nx = draw(9)",
        "import numpy as np\nclass Noise:\n    def __init__(self):\n        self.x = np.random.rand(3)\nx = Noise()",
        "import os\nx = list(os.urandom(9))",
        "import uuid\nx = [uuid.uuid4()]",
        "import time\nx = [time.time()]",
        "from datetime import datetime\nx = {'at': datetime.now()}",
        "import tempfile\nx = tempfile.TemporaryDirectory()",
        "import secrets\nx = [secrets.token_hex(4)]",
        "import requests\nx = requests.get('http://a').json()",
        "from urllib.request import urlopen\nx = urlopen('http://a').read()",
        "import yfinance as yf\nx = yf.download('A')",
        "import yfinance as yf\nx = yf.Ticker('A').history()",
        "import pandas as pd\nx = pd.read_csv('https://a/b.csv')",
        "import pandas as pd\nx = pd.read_json(f'https://a/{1}.json')",
        "import pandas as pd\nx = pd.read_parquet(path=base + 'b.parquet')",
        "import pandas as pd\nx = pd.concat([pd.read_csv(u) for u in urls])",
        "import pandas as pd\ndef load(u):\n    return pd.read_csv(u)\nx = load(base)",
        "import pandas as pd\nx = pd.read_csv(urls[0])",
        "import pandas as pd\nx = pd.read_csv('s3://a/b.csv').dropna()",
        "import numpy as np\nx = np.loadtxt('https://a/b.txt')",
        "import skimage.io\nx = skimage.io.imread('https://a/b.png')",
        "import requests\ns = requests.Session()\ns.headers.update({})\nx = s.get('https://a').content",
        "import io, requests, numpy as np\nx = np.load(io.BytesIO(requests.get('https://a').content))",
        "import pandas as pd\nx = pd.read_sql('select 1', con)",
    ],
)
def test_value_that_would_be_drawn_again_is_reported(cell: str) -> None:
    urls = {"base": small("'https://a/'"), "urls": small("['https://a', 'https://b']", "list")}
    names = {"x": LARGE, "rng": LARGE, "draw": FUNCTION, "Noise": FUNCTION, "load": FUNCTION, "con": LARGE, **urls}
    cells = ("base, urls = 'https://a/', ['https://a', 'https://b']\ncon = 1", cell)
    warnings = warned(job(*cells, train="print(x)", names=names))

    assert len(warnings) == 1
    assert warnings[0].startswith("cell [2], line ")
    assert "--push x to send the notebook's value" in warnings[0]
    assert not warned(job(*cells, train="print(x)", names=names, push=("x",)))


def test_all_reads_over_the_network_are_one_warning() -> None:
    cells = ("import pandas as pd\nx = pd.read_csv('https://a/x.csv')", "y = pd.read_csv('https://a/y.csv')")
    (said,) = warned(job(*cells, train="print(x, y)", names={"x": LARGE, "y": LARGE}))

    assert said == (
        "cell [1], line 2; cell [2], line 1 read `x`, `y` from the network (pd.read_csv); the job will read them again "
        "and may get other data. Use --push x,y to send the notebook's values."
    )


@pytest.mark.parametrize(
    "cell",
    [
        "x = pd.read_csv('data/https.csv')",
        "x = pd.read_csv(name)",
        "x = pd.read_csv('https://raw.githubusercontent.com/a/b/0123456789abcdef0123456789abcdef01234567/x.csv')",
        "from datasets import load_dataset\nx = load_dataset('imdb')",
        "from sklearn.datasets import fetch_openml\nx = fetch_openml('mnist_784')",
        "import torch\nx = torch.hub.load('pytorch/vision', 'resnet18')",
        "from tensorflow import keras\nx = keras.utils.get_file('a.txt', 'https://a/a.txt')",
        "from torchvision.datasets import MNIST\nx = MNIST('data', download=True)",
        "x = pd.DataFrame({'link': ['https://a']})",
    ],
)
def test_local_pinned_and_cached_reads_are_not_reported(cell: str) -> None:
    names = {"x": LARGE, "name": small("'a.csv'")}

    assert not warned(job("import pandas as pd\nname = 'a.csv'", cell, train="print(x)", names=names))


@pytest.mark.parametrize(
    "cell",
    [
        "from sklearn.model_selection import train_test_split\nx = train_test_split(range(9), random_state=0)",
        "from sklearn.model_selection import train_test_split\nx = train_test_split(range(9), shuffle=False)",
        "from sklearn.model_selection import KFold\nx = list(KFold(3).split(range(9)))",
        "import torch\nx = torch.utils.data.random_split(range(9), [5, 4], generator=torch.Generator().manual_seed(0))",
        "import torch\ntorch.manual_seed(0)\nx = torch.randperm(9)",
        "import numpy as np\nx = np.random.default_rng(0).permutation(9)",
        "import numpy as np\nrng = np.random.default_rng(0)\nx = rng.permutation(9)",
        "import random\nrandom.seed(0)\nx = random.sample(range(9), 3)",
        "import pandas as pd\nx = pd.DataFrame().sample(frac=1, random_state=0)",
        "import torch\nx = torch.nn.Linear(3, 1)",  # a job starts from fresh weights
        "x = 'a b'.split()",
        "def random(n):\n    return n\nx = random(3)",
        "import time\nx = time.perf_counter()",
    ],
)
def test_seeded_or_deterministic_value_is_not_reported(cell: str) -> None:
    names = {"x": LARGE, "rng": LARGE, "random": FUNCTION}

    assert not warned(job(cell, train="print(x)", names=names))


@pytest.mark.parametrize(
    "look",
    ["next(iter(loader))", "for x in loader:\n    break", "print(torch.rand(3))", "opt.step()", "show(draw())"],
)
def test_seeded_draw_after_a_skipped_one_is_reported(look: str) -> None:
    first = "import torch\ndef draw():\n    return torch.rand(3)\ndef show(x):\n    print(x)\ntorch.manual_seed(0)"
    second = "loader = torch.utils.data.DataLoader(range(9), shuffle=True)\nopt = torch.optim.SGD([], lr=1)"
    loader = NameFact(type_name="torch.utils.data.dataloader.DataLoader")
    names = {"i": LARGE, "loader": loader, "opt": LARGE, "draw": FUNCTION, "show": FUNCTION}
    warnings = warned(job(first, second, f"{look}\ni = torch.randperm(900)", train="print(i)", names=names))

    assert len(warnings) == 1
    assert "draws `i` at random (torch.randperm) after other draws, which the job omits" in warnings[0]
    assert not warned(job(first, second, f"i = torch.randperm(900)\n{look}", train="print(i)", names=names))


def test_offered_push_has_all_names_drawn_again() -> None:
    cell = "import numpy as np, torch\nx = np.random.rand(9)\ny = torch.rand(9)\nz = torch.rand(9)"
    warnings = warned(job(cell, train="print(x, y)", names=dict.fromkeys("xyz", LARGE)))

    assert [text.count("--push x,y to send") for text in warnings] == [1, 1]


def test_only_the_values_that_the_job_needs_are_reported() -> None:
    cell = "import numpy as np\nx = np.random.rand(9)\nn = len(x)"
    names = {"x": LARGE, "n": small("9", "int")}

    assert not warned(job(cell, train="print(3)", names=names))
    made = job(cell, train="print(n)", names=names)
    assert "n = 9  # the kernel's value" in made.text
    assert "x = np.random" not in made.text
    assert not warned(made)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("import random\nx = random.randint(0, 9)", "7"),
        ("import time\nx = f'run-{time.time()}'", "'run-1'"),
        ("import tempfile\nx = tempfile.mkdtemp()", "'/tmp/a'"),
        ("import random\nx = [3, 1, 2]\nrandom.shuffle(x)", "[2, 3, 1]"),
        ("import random\nx = []\nfor i in range(2):\n    x.append(random.random())", "[0.5, 0.25]"),
        ("from datetime import datetime\nat = datetime.now()\nx = f'run-{at}'", "'run-1'"),  # of what cannot be written
        ("x = tuple(set('abc'))", "('b', 'a', 'c')"),
        ("text = 'abc'\nletters = set(text)\nx = {c: i for i, c in enumerate(letters)}", "{'b': 0}"),
    ],
)
def test_small_values_are_written_into_the_program(cell: str, value: str) -> None:
    made = job(cell, train="print(x)", names={"x": small(value), "at": LARGE, "letters": TEXTS})

    assert f"x = {value}  # the kernel's value: cell [1], line" in made.text
    assert not warned(made)


def test_rebound_small_value_is_not_used() -> None:
    cell = "import random\nx = random.random()\ny = [x] * 1000\nx = 3"
    made = job(cell, train="print(y)", names={"x": small("3", "int"), "y": NUMBERS})

    assert "x = random.random()" in made.text
    assert len(warned(made)) == 1


def test_explicitly_rerun_cell_draws_again_silently() -> None:
    cell = "import numpy as np\nx = np.random.rand(9)"

    assert not warned(job(cell, train="print(x)", names={"x": LARGE}, with_cells=(1,)))


# ---------------------------------------------------------------------------------------------------- orders of sets


@pytest.mark.parametrize(
    "cell",
    [
        "x = list(set(words))",
        "x = [w for w in set(words)]",
        "x = [*set(words)]",
        "x = list(set(words) - {'a'})",
        "x = list({w.lower() for w in words})",
        "s = set(words) | {'<pad>'}\nx = list(s)",
        "x = {}\nfor i, w in enumerate(set(words)):\n    x[w] = i",
        "x = []\nfor w in set(words):\n    x.append(w)",
        "x = dict(zip(set(words), range(9)))",
        "import numpy as np\nx = np.array(list(set(words)))",
        "def vocabulary(t):\n    found = set(t)\n    return {w: i for i, w in enumerate(found)}\nx = vocabulary(words)",
        "class Vocabulary:\n    def __init__(self, t):\n        self.words = list(set(t))\nx = Vocabulary(words)",
        "x = [hash(w) % 8 for w in words]",
    ],
)
def test_order_of_a_string_set_is_reported_unless_equal(cell: str) -> None:
    names = {"x": TEXTS, "s": TEXTS, "words": TEXTS, "vocabulary": FUNCTION, "Vocabulary": FUNCTION}
    cells = ("words = open('words.txt').read().split()", cell)
    warnings = warned(job(*cells, train="print(x)", names=names))

    assert len(warnings) == 1
    assert "--push x to send the notebook's value" in warnings[0]
    assert not warned(job(*cells, train="print(x)", names=names, hash_seed="0"))


@pytest.mark.parametrize(
    ("cell", "fact"),
    [
        ("x = sorted(set(words))", TEXTS),
        ("x = sorted(list(set(words)))", TEXTS),
        ("x = sorted(w for w in set(words))", TEXTS),
        ("x = [0] * len(set(words))", NUMBERS),
        ("x = list(set(labels))", NUMBERS),  # numbers are their own hashes
        ("x = list({1, 2, 3})", TEXTS),
        ("x = {}\nfor w in set(words):\n    x[w] = []", TEXTS),
        ("x = {w: [] for w in set(words)}", TEXTS),
        ("x = [w for w in words if w in set(words)]", TEXTS),
        ("x = {w: i for i, w in enumerate(sorted(set(words)))}", TEXTS),
    ],
)
def test_sets_whose_order_does_not_matter_are_not_reported(cell: str, fact: NameFact) -> None:
    names = {"x": fact, "words": TEXTS, "labels": NUMBERS}
    first = "words = open('words.txt').read().split()\nlabels = open('labels.bin', 'rb').read()"

    assert not warned(job(first, cell, train="print(x)", names=names))
