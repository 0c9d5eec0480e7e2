#!/bin/sh
# Makes the shipped fits of AWS Neuron devices anew from the measured data of third parties, which are not in this
# repository.
#
# usage: make_neuron_fits.sh DATA [KNEEBOARD]
#
# DATA holds trn1-latency/, trn2-vllm-neuron/, inf2-token-gaps/ (docs/CALIBRATION.md says where they come from). Run it
# from the repository's root; the fits are written to calibration/fits. The commands are those that the fits themselves
# name.
set -eu
data=$1
kneeboard=${2:-target/release/kneeboard}
fits=calibration/fits
work=target/recipes
mkdir -p "$work"

programs() {
    name=$1
    table=$2
    shift 2
    "$kneeboard" calibrate programs "$work/$table.csv" "$@" -o "$fits/$name.yaml" --overwrite >/dev/null
}
python3 calibration/recipes/trn1_programs.py "$data/trn1-latency/trn1_latency_data_decoder.csv" >"$work/trn1-programs.csv"
programs trn1-neuron trn1-programs --engine "transformers-neuronx 2.18" \
    --note "all but TinyLlama are published latencies of Transformers NeuronX at tensor parallelism 32, not of vLLM" \
    --note "TinyLlama's two programs are implied by a published load test, not measured: they stand or fall together"
python3 calibration/recipes/trn2_programs.py "$data/trn2-vllm-neuron/runs.csv.gz" >"$work/trn2-programs.csv"
programs trn2-neuron trn2-programs --engine "vllm-neuron 0.16" --prior matrix_compute=0.72:0.12 \
    --note "the prior of matrix_compute is that of large products measured on one logical core of trn2: 117 to 134 of 167 TFLOP/s" \
    --note "tensor parallelism 1 with 16 rows is left out: 73.8 ms a token, an anomaly" \
    --note "tensor parallelism 1 says nothing of collectives and 4 is the only other: 2, 8 and more rest on the priors of latency and algorithm"
python3 calibration/recipes/inf2_programs.py "$data/inf2-token-gaps/std-8b-ods-true.jsonl.gz" >"$work/inf2-programs.csv"
programs inf2-neuron inf2-programs --engine "vllm 0.11 optimum-neuron" --priors "$fits/trn1-neuron.yaml" \
    --prior front_end_in=0.01:1.0 \
    --note "one deployment was measured, with prompts of one length: which buckets its programs have is not known and taken to be the whole sequence"
