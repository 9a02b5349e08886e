"""Imports that matter for their side effects: registrations and switches. Pure."""

from __future__ import annotations

import ast
import sys
from typing import Final

from jupyter_dlaas.analysis.effects import words

__all__ = ["may_register"]

PLAIN: Final = frozenset(sys.stdlib_module_names) | words(
    """IPython PIL accelerate albumentations altair bokeh bs4 cartopy catboost cv2 cvxpy datasets deap diffusers distrax
    einops evaluate faiss fastai fastcore flax folium gensim geopandas google gym gymnasium h5py haiku holoviews
    huggingface_hub hydra imageio imblearn imgaug ipywidgets jax jaxlib joblib jupyter_dlaas kagglehub keras
    keras_tuner kornia langchain librosa lightgbm lightning lime lxml matplotlib matplotlib_inline missingno mlflow
    mpl_toolkits mplfinance networkx nltk numba numpy numpyro omegaconf onnx onnxruntime openai openpyxl optax optuna
    pandas pandas_profiling peft pickle5 plotly plotnine polars prettytable prophet psutil pyarrow pydantic pydot
    pylab pymc pyro pytorch_lightning rdkit requests rich ruamel sacrebleu safetensors scipy seaborn
    sentence_transformers sentencepiece setuptools shap six skimage sklearn skorch soundfile spacy sqlalchemy
    statsmodels streamlit sympy tabulate tensorboard tensorboardX tensorflow tensorflow_datasets tensorflow_hub
    textblob tiktoken timm tokenizers torch torch_geometric torchaudio torchdata torchinfo torchmetrics torchsummary
    torchtext torchvision torchviz tqdm transformers trl umap unidecode urllib3 wandb wordcloud xgboost yaml
    yellowbrick yfinance"""
)
"""Packages whose modules are imported for their names."""
SWITCHES: Final = ("enable_", "disable_")


def may_register(node: ast.stmt) -> bool:
    """Return whether an import may change other modules, regardless of the name that it binds.

    `import panda_gym` adds environments to gymnasium's table, `from sklearn.experimental import
    enable_iterative_imputer` enables the import of another module. A wrong guess costs the time of an import.
    """
    match node:
        case ast.ImportFrom(module=str(module), names=names, level=0):
            parts = module.split(".")
            is_switch = "experimental" in parts or any(alias.name.startswith(SWITCHES) for alias in names)
            return names[0].name != "*" and parts[0] != "__future__" and (is_switch or parts[0] not in PLAIN)
        case ast.Import(names=names):
            return any(alias.name.partition(".")[0] not in PLAIN for alias in names)
        case _:
            return False
