#!/usr/bin/env python3
"""AWS's published latencies of decoders on Trainium1 as a table of compiled programs for `kneeboard calibrate programs`.

    trn1_programs.py trn1_latency_data_decoder.csv > trn1-programs.csv

All of them come from other software (Transformers NeuronX 2.18) on trn1.32xlarge at tensor parallelism 32, so that each has
a scatter of its own and none serves as the time of its program. The median TTFT is a lone prompt whose bucket is its length,
the median TPOT is one token of each row over the whole sequence. Models without a profile are left out.

TinyLlama's two rows are no measurements: they are two of the five constants with which a simulation of a published load test
(trn1.2xlarge, tensor parallelism 2, 4 rows of 1024 positions, no buckets; scenarios/trn1-tinyllama-llmperf.yaml) meets its
figures. The least TTFT pins the prompt; the mean gap less the stalls by other prompts is the decode.
"""
import csv
import sys

OUT = ["accelerator", "model", "dtype", "tp", "max_num_seqs", "max_model_len", "kind", "bucket", "seconds", "n", "log_sd",
       "source"]
MODELS = {"Llama-3-8B": "llama-3-8b", "Llama-3-70B": "llama-3-70b", "Llama-2-7b": "llama-2-7b",
          "Llama-2-13b": "llama-2-13b", "Llama-2-70b": "llama-2-70b"}
OTHER_SOFTWARE = 0.15
# AWS Neuron documentation, of throughput runs: (model, dtype, rows, TPOT in seconds, positions).
LARGER_BATCHES = [("llama-3-8b", "int8", 8, 0.00765, 4096), ("llama-3-70b", "bf16", 4, 0.030, 4096)]
IMPLIED = [("context_encoding", 0.0513), ("token_generation", 0.007775)]


def main(path):
    out = csv.DictWriter(sys.stdout, OUT, lineterminator="\n")
    out.writeheader()

    def write(model, dtype, tp, rows, longest, kind, bucket, seconds, log_sd, source):
        out.writerow({"accelerator": "trn1", "model": model, "dtype": dtype, "tp": tp, "max_num_seqs": rows,
                      "max_model_len": longest, "kind": kind, "bucket": bucket, "seconds": f"{seconds:.6f}", "n": 1,
                      "log_sd": log_sd, "source": source})

    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            model = MODELS.get(row["Model"])
            if model is None:
                continue
            tp, rows, longest = (int(row[c]) for c in ("TP Degree", "Batch Size", "Sequence Length"))
            dtype = row["Weight Storage Data Type"]
            source = "published, Transformers NeuronX"
            write(model, dtype, tp, rows, longest, "lone_prompt", int(row["Input Length"]),
                  float(row["TTFT Latency P50 (ms)"]) / 1e3, OTHER_SOFTWARE, source)
            write(model, dtype, tp, rows, longest, "token_generation", longest,
                  float(row["TPOT Latency P50 (ms)"]) / 1e3, OTHER_SOFTWARE, source)
    for model, dtype, rows, seconds, longest in LARGER_BATCHES:
        write(model, dtype, 32, rows, longest, "token_generation", longest, seconds, OTHER_SOFTWARE,
              "published, Transformers NeuronX")
    for kind, seconds in IMPLIED:
        write("tinyllama-1.1b", "bf16", 2, 4, 1024, kind, 1024, seconds, "", "implied by a published load test")


if __name__ == "__main__":
    main(sys.argv[1])
