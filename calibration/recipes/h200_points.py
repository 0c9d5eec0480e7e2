#!/usr/bin/env python3
"""Points for `kneeboard calibrate points` out of the published Llama-3.1-70B FP8 runs of vLLM on H200.

usage: h200_points.py llama31_70b_fp8_vllm.csv.gz > h200-points.csv

The runs do not state engine version, seats or budget: those cells stay empty. Measured in October 2025, so the
release is taken to be one of late 2025 (see docs/CALIBRATION.md). Only Python's standard library is needed.
"""
import csv
import gzip
import sys

COLUMNS = (
    "accelerator,instance,model,dtype,kv_dtype,engine,engine_version,tp,pp,dp,ep,max_num_seqs,"
    "max_num_batched_tokens,load,max_concurrency,request_rate,num_prompts,input_len,output_len,"
    "length_jitter,prefix_reuse,ttft_ms,tpot_ms,e2e_ms,throughput_tok_s,statistic,boundary"
).split(",")
ACCELERATORS = {"h200_sxm": "h200-sxm"}


def main(path):
    out = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    out.writeheader()
    with gzip.open(path, "rt", newline="") as text:
        rows = sorted(csv.DictReader(text), key=lambda r: (r["tp_size"], r["isl"], float(r["batch_size"])))
    for row in rows:
        if row["backend"] != "vllm" or row["mode"] != "agg":
            continue
        out.writerow({
            "accelerator": ACCELERATORS[row["system"]],
            "model": "llama-3.1-70b",
            "dtype": row["precision"],
            "engine": "vllm",
            "tp": int(float(row["tp_size"])),
            "load": "closed",
            "max_concurrency": int(float(row["batch_size"])),
            "input_len": row["isl"],
            "output_len": row["osl"],
            "length_jitter": "0.2",
            "ttft_ms": f"{float(row['silicon_ttft_ms']):.3f}",
            "tpot_ms": f"{float(row['silicon_tpot_ms']):.4f}",
            "boundary": "client",
        })


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
