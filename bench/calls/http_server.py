"""The agent as a plain HTTP service: http_server.py PORT."""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from product import PRODUCTS
from pydantic import BaseModel

app = FastAPI()


class Query(BaseModel):
    productId: str


@app.post("/getProductInfo")
async def get_product_info(query: Query) -> dict[str, Any]:
    if query.productId not in PRODUCTS:
        raise HTTPException(404, "There is no such product.")
    return PRODUCTS[query.productId]


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
