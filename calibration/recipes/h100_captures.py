#!/usr/bin/env python3
"""Captures without steps out of the published H100 request files (vLLM 0.15.1, three models, TP 1, 2, 4).

usage: h100_captures.py FOLDER OUTPUT

FOLDER holds experiments.json and requests.csv.gz. One capture a stage of a run; a stage starts with an empty prefix
cache here, which the first 60 s, left out of every figure, fill again (prompts repeat every 100 requests). Only
Python's standard library is needed.
"""
import csv
import gzip
import json
import os
import sys

WARMUP_S = 60


def main(folder, output):
    with open(os.path.join(folder, "experiments.json")) as text:
        experiments = json.load(text)
    stages = {}
    with gzip.open(os.path.join(folder, "requests.csv.gz"), "rt", newline="") as text:
        for row in csv.DictReader(text):
            stages.setdefault((row["experiment"], row["stage"]), []).append(row)
    for (name, stage), rows in sorted(stages.items()):
        experiment = experiments[name]
        config = experiment["config"]
        tp = config["tensor_parallelism"]
        run = f"{experiment['model_short']}-tp{tp}-{experiment['profile']}"
        target = os.path.join(output, run, f"stage{stage}")
        os.makedirs(target, exist_ok=True)
        start = min(float(r["arrival_s"]) for r in rows)
        with open(os.path.join(target, "requests.csv"), "w", newline="") as text:
            out = csv.writer(text, lineterminator="\n")
            out.writerow("id arrival_s first_token_s last_token_s input_tokens output_tokens prefix_group "
                         "prefix_tokens status".split())
            for index, r in enumerate(rows):
                at = float(r["arrival_s"]) - start
                failed = r["has_error"] not in ("0", "False", "false")
                times = ["", ""] if failed else [
                    f"{at + float(r['ttft_s']):.6f}", f"{at + float(r['e2e_s']):.6f}"]
                # Generation ran to max_tokens; the client's re-tokenised count is wrong.
                out.writerow([index, f"{at:.6f}", *times, r["input_tokens"], r["max_tokens"], r["prompt_id"],
                              r["input_tokens"], "error" if failed else "completed"])
        manifest = {
            "name": f"stage{stage}",
            "vllm": "0.15.1",
            "accelerator": "h100-sxm",
            "model": experiment["model_id"],
            "dtype": "bf16",
            "tensor_parallel_size": tp,
            "clock": "client",
            "warmup_s": WARMUP_S,
            "engine_effective": {
                "max_num_seqs": config["max_num_seqs"],
                "max_num_batched_tokens": config["max_num_batched_tokens"],
                "max_model_len": 4096,
                "block_size": config["block_size"],
                "num_gpu_blocks": config["kv_blocks_total_gpu"],
                "enable_prefix_caching": True,
                "enable_chunked_prefill": True,
                "async_scheduling": True,
            },
        }
        with open(os.path.join(target, "manifest.json"), "w") as text:
            json.dump(manifest, text, indent=1)
            text.write("\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
