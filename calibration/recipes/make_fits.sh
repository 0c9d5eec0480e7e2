#!/bin/sh
# Makes every shipped fit of GPUs and Neuron devices anew from the measured data of third parties, which are not in this
# repository.
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

sh calibration/recipes/make_neuron_fits.sh "$data" "$kneeboard"
