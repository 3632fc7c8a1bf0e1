#!/usr/bin/env bash
# Submit a run as a job on one machine of a Ray cluster. For several machines, see ray_train.py.
#
#     bash ray_job.sh --gpus 8 sft.yaml --dataset /data/chats.jsonl
#
# Start a cluster of one machine with
#     ray start --head --node-ip-address 127.0.0.1 --dashboard-host 127.0.0.1
# and stop it with `ray stop`. Ray deletes the job's working folder, so the output goes to another one. If you or Ray submit
# the job again, it resumes from its last checkpoint.
#
# On `ray job stop` swift receives SIGTERM, saves and stops. Give it more time than Ray's three seconds:
# RAY_JOB_STOP_WAIT_TIME_S=300 ray start ...
set -euo pipefail

gpus=0
if [ "${1:-}" = --gpus ]; then
    gpus=$2
    shift 2
fi
processes=()
if [ "$gpus" -gt 1 ]; then
    processes=(--nproc "$gpus")
fi
ray job submit --address "${RAY_ADDRESS:-http://127.0.0.1:8265}" --entrypoint-num-gpus "$gpus" --working-dir "${FOLDER:-.}" \
    -- swift sft "$@" "${processes[@]}" --output_dir "${OUTPUT:-/data/output}" --logging.run_name "${NAME:-swift-sft}" \
    --resume_from_checkpoint auto
