"""The HTTP API, one file a resource. A route reads what a request says, asks one thing of the registry, and encodes the answer;
caps and refusals are the same everywhere (`requests`, `problems`)."""
