#!/usr/bin/env bash
# A run as a job of a Ray cluster, on one of its machines; for several machines see ray_train.py.
#
# A machine by itself is a cluster after
#     ray start --head --node-ip-address 127.0.0.1 --dashboard-host 127.0.0.1
# and none any more after `ray stop`. The job's output goes to a folder that outlives the job: its own is Ray's, and is
# removed. Submitted again, or tried again by Ray, the same job goes on from its last checkpoint.
#
#     bash ray_job.sh --gpus 8 sft.yaml --dataset /data/chats.jsonl
#
# `ray job stop` sends SIGTERM, upon which swift saves and stops. Ray waits for three seconds unless the cluster was started
# with more: RAY_JOB_STOP_WAIT_TIME_S=300 ray start ...
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
