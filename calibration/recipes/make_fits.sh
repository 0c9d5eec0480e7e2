#!/bin/sh
# Makes every shipped fit of GPUs and Neuron devices anew from the measured data of third parties, which are not in this repository.
#
# usage: make_fits.sh DATA [KNEEBOARD]
#
# DATA holds kernels/, gpu-requests-h100/, gpu-aggregate-h200/, gpu-requests-rtxpro6000/, trn1-latency/, trn2-vllm-neuron/,
# inf2-token-gaps/ (docs/CALIBRATION.md says where they come from). Run it from the repository's root; the fits are written to calibration/fits. The commands
# are those that the fits themselves name.
set -eu
data=$1
kneeboard=${2:-target/release/kneeboard}
fits=calibration/fits
work=target/recipes
mkdir -p "$work"

kernels() {
    "$kneeboard" calibrate kernels "$data/kernels/$1" --accelerator "$2" -o "$fits/$3.yaml" --overwrite >/dev/null
}
kernels a100_sxm a100-sxm-80gb a100-bf16
kernels l40s l40s l40s-bf16
kernels h100_sxm h100-sxm h100-kernels
kernels h200_sxm h200-sxm h200-kernels
kernels rtx_pro_6000_server rtx-pro-6000 rtxpro6000-kernels

python3 calibration/recipes/h100_captures.py "$data/gpu-requests-h100" "$work/h100"
"$kneeboard" calibrate events "$work/h100" --max-requests 1500 --priors "$fits/h100-kernels.yaml" \
    -o "$fits/h100-bf16-vllm.yaml" --overwrite >/dev/null

python3 calibration/recipes/h200_points.py "$data/gpu-aggregate-h200/llama31_70b_fp8_vllm.csv.gz" \
    >"$work/h200-points.csv"
"$kneeboard" calibrate points "$work/h200-points.csv" --engine-version 0.13.0 --kv-dtype fp8 \
    --priors "$fits/h200-kernels.yaml" --priors "$fits/h100-bf16-vllm.yaml" \
    -o "$fits/h200-fp8-vllm.yaml" --overwrite >/dev/null

python3 calibration/recipes/rtxpro6000_capture.py "$data/gpu-requests-rtxpro6000" "$work/rtxpro6000"
"$kneeboard" calibrate events "$work/rtxpro6000" --priors "$fits/rtxpro6000-kernels.yaml" \
    --priors "$fits/h100-bf16-vllm.yaml" -o "$fits/rtxpro6000-bf16-vllm.yaml" --overwrite >/dev/null

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
