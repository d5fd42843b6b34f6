#!/usr/bin/env bash
# The bundle for GPU nodes, packed by launch/gpu_suite: it unpacks, its script ends with 77 where it finds no GPU, and a
# job of several processes runs on the C library of the bundle, as on a node with an older one.
#   gpu_suite_bundle_test.sh BUILD_FOLDER WORK_FOLDER
set -euo pipefail
build=$1 work=$2
cd "$(dirname "$0")/../.."
rm -rf "$work"
mkdir -p "$work"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OUTRIDER_BUILD=$build GPU_SUITE_FAST=1 launch/gpu_suite "$work/outrider_gpu_suite.tar.xz"
tar -C "$work" -xJf "$work/outrider_gpu_suite.tar.xz"
bundle=$work/outrider_gpu_suite
code=0
CUDA_VISIBLE_DEVICES='' "$bundle/run" "$work/results" || code=$?
[ "$code" -eq 77 ]
pair=(--model launch/demo_pair/target --draft-model launch/demo_pair/draft --prompt "Once upon a time" --max-tokens 64 --quiet)
bundled=$(GPU_SUITE_LIBC=own "$bundle/bin/mpirun" -n 3 "$bundle/bin/outrider" generate "${pair[@]}" \
  --layout coordinator=1,draft=1,target=1)
[ "$bundled" = "$("$build/outrider" generate "${pair[@]}")" ]
echo "bundle with its own C library: same text"
