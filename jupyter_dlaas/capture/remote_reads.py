"""Calls that read from the network or from databases, so that a job would read again. Pure.

Reads that libraries cache (`load_dataset`, `fetch_openml`, `torch.hub.load`, `get_file`) give the same result again and
are not reported; neither are addresses that name a commit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Final

from jupyter_dlaas.analysis.effects import verb_of, words
from jupyter_dlaas.analysis.model import NameFact

__all__ = ["CLIENTS", "is_of_client", "names_address", "reads_address", "reads_database", "reads_network"]

_NETWORK: Final = words(
    """requests.get requests.post requests.request urllib.request.urlopen urllib.request.urlretrieve httpx.get
    httpx.post httpx.request httpx.stream yfinance.download feedparser.parse pandas_datareader.data.DataReader
    pandas_datareader.DataReader wget.download gdown.download urllib3.request pandas.read_gbq"""
)
"""Functions that always read from the network."""
CLIENTS: Final = words(
    """requests.Session requests.session httpx.Client urllib3.PoolManager yfinance.Ticker yfinance.Tickers
    fredapi.Fred pymongo.MongoClient google.cloud.bigquery.Client boto3.client boto3.resource"""
)
"""Constructors of objects whose methods read from the network."""
_QUIET_OF_CLIENTS: Final = words("close mount update headers auth add set")
_DATABASE: Final = words("pandas.read_sql pandas.read_sql_query pandas.read_sql_table polars.read_database")
_DATABASE_URI: Final = words("polars.read_database_uri connectorx.read_sql")
_READERS: Final = words(
    """read_csv read_table read_json read_excel read_parquet read_pickle read_feather read_fwf read_html read_xml
    read_stata read_ipc read_ndjson scan_csv scan_parquet read_file read_image loadtxt genfromtxt imread load_image
    open open_dataset open_mfdataset open_zarr GFile from_csv VideoCapture"""
)
"""Functions that take a path or an address."""
_ADDRESS: Final = re.compile(r"(?:https?|ftp|s3a?|gs|gcs|hf|abfss?|az|wasbs?)://")
_PINNED: Final = re.compile(r"/[0-9a-f]{40}/")
"""Pattern of a commit, whose contents never change."""
_DEPTH_MAX: Final = 20


def reads_network(name: str) -> bool:
    """Return whether a library's function, by its full name, always reads from the network."""
    return name in _NETWORK


def reads_database(name: str) -> bool:
    return name in _DATABASE | _DATABASE_URI


def is_of_client(verb: str) -> bool:
    """Return whether a method of a client reads, rather than configures it."""
    return verb not in _QUIET_OF_CLIENTS


def reads_address(call: ast.Call, names: Mapping[str, NameFact], *, is_near_address: bool) -> bool:
    """Return whether a call reads from an address: `pd.read_csv("https://…")`.

    `is_near_address`: the enclosing statement contains an address, so a variable that is unknown to the kernel (of a
    comprehension, a parameter) is assumed to hold it.
    """
    if verb_of(call.func) not in _READERS:
        return False
    given = [*call.args[:1], *(option.value for option in call.keywords)]
    texts = [_beginning(one, names) for one in given]
    if any(_is_remote(text) for text in texts):
        return True
    unknown = isinstance(given[0], ast.Name) and given[0].id not in names if given else False
    return unknown and is_near_address


def names_address(node: ast.AST, names: Mapping[str, NameFact]) -> bool:
    """Return whether a statement contains an address or reads a variable that holds one."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and _is_remote(part.value):
            return True
        if isinstance(part, ast.Name) and (fact := names.get(part.id)) is not None and fact.literal is not None:
            found = _ADDRESS.search(fact.literal)
            if found is not None and not _PINNED.search(fact.literal):
                return True
    return False


def _is_remote(text: str) -> bool:
    return _ADDRESS.match(text) is not None and _PINNED.search(text) is None


def _beginning(node: ast.expr, names: Mapping[str, NameFact], depth: int = 0) -> str:
    """Return the known beginning of an expression's text: `BASE + "a.csv"`, `f"https://a/{n}.csv"`."""
    if depth == _DEPTH_MAX:
        return ""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            fact = names.get(name)
            return _literal(fact.literal) if fact is not None and fact.literal is not None else ""
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod() | ast.Div(), right=right):
            return _beginning(left, names, depth + 1) + _beginning(right, names, depth + 1)
        case ast.JoinedStr(values=values):
            return "".join(_beginning(one, names, depth + 1) for one in values)
        case ast.FormattedValue(value=value):
            return _beginning(value, names, depth + 1)
        case ast.Call(func=ast.Attribute(value=receiver, attr="format" | "join" | "strip")):
            return _beginning(receiver, names, depth + 1)
        case ast.Call(func=function, args=[first, *_]) if verb_of(function) in ("join", "urljoin", "str"):
            return _beginning(first, names, depth + 1)
        case ast.Subscript(value=ast.Name() as holder):  # `URLS["train"]`: any element will do
            fact = names.get(holder.id)
            found = _ADDRESS.search(fact.literal) if fact is not None and fact.literal is not None else None
            return fact.literal[found.start() :] if found is not None and fact is not None and fact.literal else ""
        case _:
            return ""


def _literal(text: str) -> str:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    return value if isinstance(value, str) else ""
