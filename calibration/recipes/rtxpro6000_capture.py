#!/usr/bin/env python3
"""A capture without steps out of the published RTX PRO 6000 run (vLLM 0.19, Llama-3.1-8B, 300 requests).

usage: rtxpro6000_capture.py FOLDER OUTPUT

FOLDER holds meta.json and requests.jsonl. Times are the engine's own (queued to last token). Only Python's standard
library is needed.
"""
import csv
import json
import os
import sys


def main(folder, output):
    with open(os.path.join(folder, "meta.json")) as text:
        meta = json.load(text)
    with open(os.path.join(folder, "requests.jsonl")) as text:
        rows = [json.loads(line) for line in text if line.strip()]
    rows.sort(key=lambda r: r["queued_ts"])
    start = rows[0]["queued_ts"]
    knobs = meta["engine_kwargs"]
    target = os.path.join(output, "rtxpro6000-llama-3.1-8b", "sharegpt-300")
    os.makedirs(target, exist_ok=True)
    with open(os.path.join(target, "requests.csv"), "w", newline="") as text:
        out = csv.writer(text, lineterminator="\n")
        out.writerow("id arrival_s first_token_s last_token_s input_tokens output_tokens".split())
        for index, r in enumerate(rows):
            times = [r["queued_ts"], r["first_token_ts"], r["last_token_ts"]]
            out.writerow([index, *(f"{t - start:.6f}" for t in times), r["input_toks"], r["output_toks"]])
    manifest = {
        "name": "sharegpt-300",
        "vllm": "0.19.1",
        "accelerator": "rtx-pro-6000",
        "model": meta["model"],
        "dtype": "bf16",
        "tensor_parallel_size": knobs["tensor_parallel_size"],
        "clock": "engine",
        "engine_effective": {
            "max_num_seqs": knobs["max_num_seqs"],
            "max_num_batched_tokens": knobs["max_num_batched_tokens"],
        },
        "assumptions": [
            f"vllm = 0.19.1 (the run used {meta['vllm_version']}, whose scheduler rules are taken to be the same)",
        ],
    }
    with open(os.path.join(target, "manifest.json"), "w") as text:
        json.dump(manifest, text, indent=1)
        text.write("\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
