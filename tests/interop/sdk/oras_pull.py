"""Pull an artifact from a registry with oras-py: `oras_pull.py REFERENCE FOLDER`. It prints the paths of the files."""

from __future__ import annotations

import json
import sys

import oras.client

reference, folder = sys.argv[1:]
print(json.dumps(oras.client.OrasClient(insecure=True).pull(target=reference, outdir=folder)))
