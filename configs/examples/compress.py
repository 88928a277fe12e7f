"""Quantizes a Hugging Face checkpoint for vLLM, as a job: see compress.yaml.

Not run where aloft is tested: it needs llm-compressor, and a GPU for all but the
smallest models. Both schemes need no calibration data.
"""

import argparse
import json
import os
import pathlib
import sys

p = argparse.ArgumentParser()
p.add_argument("--folder", type=pathlib.Path, required=True, help="model and out are names in it")
p.add_argument("--scheme", choices=["FP8_DYNAMIC", "W4A16"], required=True)
p.add_argument("model")
p.add_argument("out")
a = p.parse_args()
for name in (a.model, a.out):
    if pathlib.Path(name).name != name or name.startswith("."):
        sys.exit(f"{name}: want a name in {a.folder}, without a folder")

from llmcompressor import oneshot  # noqa: E402  (slow: after the checks)
from llmcompressor.modifiers.quantization import QuantizationModifier  # noqa: E402

partial = a.folder / (a.out + ".partial")  # whole or not at all
oneshot(
    model=str(a.folder / a.model),
    recipe=QuantizationModifier(targets="Linear", scheme=a.scheme, ignore=["lm_head"]),
    output_dir=str(partial),
)
os.rename(partial, a.folder / a.out)


def size(path):
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


result = {"version": 1, "kind": "quantization", "model": a.model, "file": str(a.folder / a.out), "type": a.scheme,
          "bytes_in": size(a.folder / a.model), "bytes_out": size(a.folder / a.out)}
with os.fdopen(int(os.environ["ALOFT_PROGRESS_FD"]), "w") as progress:
    print(json.dumps({"step": 1, "total": 1, "unit": "models", "result": result}), file=progress)
