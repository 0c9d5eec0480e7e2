#!/usr/bin/env python3
"""vLLM-Neuron runs of Qwen3-8B on Trainium2 as a table of compiled programs for `kneeboard calibrate programs`.

    trn2_programs.py runs.csv.gz > trn2-programs.csv

The runs (columns group, run, file, tp, max_num_seqs, max_len, phase, tag, prompt_idx, tpt_ms, ttft_ms, ...; none of it is
kept here) send max_num_seqs prompts at once. The k-th TTFT holds k prompts, so differences of neighbours are one program
each, and the first holds the front end too. The TPOT of the last prompt is the one without later prompts in it.

Left out: runs after a cold start, one of two copies of the same rows, and tensor parallelism 1 with 16 rows (73.8 ms a
token: an anomaly). Further rows are published figures of other software on the same chip, with a scatter of their own.
"""
import csv
import gzip
import statistics
import sys
from collections import defaultdict

BUCKETS = (128, 256, 512, 1024)
OUT = ["accelerator", "model", "dtype", "tp", "logical_core", "max_num_seqs", "max_model_len", "kind", "bucket", "seconds",
       "n", "log_sd", "source"]
PUBLISHED = [
    # Inter-token latency of one user where 32 rows of 4096 positions were compiled: Hugging Face's Neuron benchmarks, 2025-10.
    ("llama-3.1-8b", 4, 32, 4096, "token_generation", 4096, 0.0221, 0.15, "published, optimum-neuron"),
]


def bucket_of(tokens, longest):
    """The first bucket strictly above, but for the longest."""
    return next((b for b in BUCKETS if b > tokens and b <= longest), longest)


def main(path):
    runs = defaultdict(dict)
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["group"] != "retire_a/logs_1" or row["tag"] != "WARM":
                continue
            key = (int(float(row["tp"])), int(float(row["max_num_seqs"])), int(float(row["max_len"])), row["file"])
            runs[key][int(float(row["prompt_idx"]))] = row
    out = csv.DictWriter(sys.stdout, OUT, lineterminator="\n")
    out.writeheader()

    def write(tp, rows, longest, kind, bucket, ms, n, source):
        out.writerow({"accelerator": "trn2", "model": "qwen3-8b", "dtype": "bf16", "tp": tp, "logical_core": 2,
                      "max_num_seqs": rows, "max_model_len": longest, "kind": kind, "bucket": bucket,
                      "seconds": f"{ms / 1e3:.6f}", "n": n, "source": source})

    for (tp, rows, longest, file), prompts in sorted(runs.items()):
        if (tp, rows) == (1, 16):
            continue
        prompts = [prompts[i] for i in sorted(prompts)]
        ttft = [float(p["ttft_ms"]) for p in prompts]
        source = file.removeprefix("metrics_").removesuffix(".json")
        bucket = bucket_of(int(float(prompts[0]["input_tokens"])), longest)
        if prompts[0]["phase"] == "prefill":
            write(tp, rows, longest, "lone_prompt", bucket, ttft[0], 1, source)
            gaps = [b - a for a, b in zip(ttft, ttft[1:])]
            if gaps:
                write(tp, rows, longest, "context_encoding", bucket, statistics.median(gaps), len(gaps), source)
        else:
            tokens = int(float(prompts[0]["output_tokens"]))
            write(tp, rows, longest, "token_generation", longest, float(prompts[-1]["tpt_ms"]), tokens - 1, source)
    for model, tp, rows, longest, kind, bucket, seconds, log_sd, source in PUBLISHED:
        out.writerow({"accelerator": "trn2", "model": model, "dtype": "bf16", "tp": tp, "logical_core": 2,
                      "max_num_seqs": rows, "max_model_len": longest, "kind": kind, "bucket": bucket,
                      "seconds": seconds, "n": 1, "log_sd": log_sd, "source": source})


if __name__ == "__main__":
    main(sys.argv[1])
