#!/usr/bin/env python3
"""Token gaps of Llama-3.1-8B on Inferentia2 as a table of compiled programs for `kneeboard calibrate programs`.

    inf2_programs.py std-8b-ods-true.jsonl.gz > inf2-programs.csv

The server (inf2.48xlarge, tensor parallelism 8, 32 rows of 4096 positions, prompts whole, sampling on the device) runs one
program for all decodes: gaps cluster at 25 ms, and at 0.3 s more for every prompt that a step takes in. One user alone tells
the decode; of 32 users every second request tells decode and prompt, the others are kept for checking. The gap at the end of
a request is not in the data.

Neither buckets nor lengths tell which programs these are: all prompts have about 1500 tokens. They are taken to be compiled
for the whole sequence, since the time of a prompt is then the share of the device's peak that other published prompts reach.
Further rows are published figures of other software on the same chip, with a scatter of their own.
"""
import csv
import gzip
import json
import statistics
import sys

OUT = ["accelerator", "model", "dtype", "tp", "max_num_seqs", "max_model_len", "kind", "bucket", "seconds", "n", "log_sd",
       "source"]
STALL_S = 0.1
ONE_PROMPT_S = (0.28, 0.36)
# AWS Neuron documentation, benchmarks of Transformers NeuronX on inf2.48xlarge, bf16, middle of the stated range.
PUBLISHED = [
    ("llama-3-8b", 24, 1, 4096, "token_generation", 4096, 0.0069, 0.2),
    ("llama-3-8b", 24, 8, 4096, "token_generation", 4096, 0.0127, 0.25),
    ("llama-3-8b", 24, 1, 4096, "lone_prompt", 2048, 0.102, 0.2),
    ("llama-3-70b", 24, 1, 4096, "token_generation", 4096, 0.0334, 0.2),
    ("llama-3-70b", 24, 1, 4096, "lone_prompt", 2048, 0.745, 0.2),
]


def main(path):
    with gzip.open(path, "rt") as file:
        requests = [json.loads(line) for line in file]
    alone = [r for r in requests if r["mode"] == "synchronous"]
    loaded = sorted((r for r in requests if r["mode"] == "throughput"), key=lambda r: r["start_time"])
    out = csv.DictWriter(sys.stdout, OUT, lineterminator="\n")
    out.writeheader()

    def write(model, tp, rows, longest, kind, bucket, seconds, n, log_sd, source):
        out.writerow({"accelerator": "inf2", "model": model, "dtype": "bf16", "tp": tp, "max_num_seqs": rows,
                      "max_model_len": longest, "kind": kind, "bucket": bucket, "seconds": f"{seconds:.6f}", "n": n,
                      "log_sd": log_sd, "source": source})

    def gaps(some):
        # The first gap is that of a chunk without text.
        return [g for r in some for g in r["decode_times_s"][1:]]

    decodes = {}
    for name, some in (("one user", alone), ("32 users, every second request", loaded[::2])):
        plain = [g for g in gaps(some) if g <= STALL_S]
        decodes[name] = statistics.median(plain)
        write("llama-3.1-8b", 8, 32, 4096, "token_generation", 4096, decodes[name], len(plain), "", name)
    prompts = [g for g in gaps(loaded[::2]) if ONE_PROMPT_S[0] < g < ONE_PROMPT_S[1]]
    name = "32 users, every second request"
    write("llama-3.1-8b", 8, 32, 4096, "context_encoding", 4096, statistics.median(prompts) - decodes[name], len(prompts), "",
          name)
    write("llama-3.1-8b", 8, 32, 4096, "lone_prompt", 4096, statistics.median(r["ttft_s"] for r in alone), len(alone), "",
          "one user")
    for model, tp, rows, longest, kind, bucket, seconds, log_sd in PUBLISHED:
        write(model, tp, rows, longest, kind, bucket, seconds, 1, log_sd, "published, Transformers NeuronX")


if __name__ == "__main__":
    main(sys.argv[1])
