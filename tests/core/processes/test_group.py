"""What the variables of launchers and schedulers mean."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from swift.errors import ConfigError
from swift.processes.group import (
    Group,
    alone_in_slurm,
    check_port,
    current_world,
    find_group,
    first_machine,
    join,
    threads_set,
)
from swift.processes.reports import reported_errors

EXAMPLES = Path(__file__).parents[3] / "examples"

BATCH_SCRIPT = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "16",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "gpu[03-04]",
}
"""In a job's script itself, where nothing was started by srun."""

TASK = BATCH_SCRIPT | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
}

POD = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1"}


@pytest.mark.parametrize(
    ("machines", "first"),
    [
        ("gpu[003-005,9],big1", "gpu003"),
        ("node-1", "node-1"),
        ("node-1,node-2", "node-1"),
        ("a[1-2]b[3-4],c", "a1b3"),
        ("rack[02,07]-ib", "rack02-ib"),
        ("[7-9]", "7"),
        ("host.domain.org", "host.domain.org"),
    ],
)
def test_first_slurm_host_is_rendezvous(machines: str, first: str) -> None:
    assert first_machine(machines) == first


def test_a_slurm_task_joins_the_tasks_of_its_step() -> None:
    group = find_group(TASK)
    assert (group.size, group.rank, group.local_rank, group.address, group.processes) == (16, 9, 1, "gpu03", 1)
    variables = dict(TASK)
    join(group, variables)
    world = current_world(variables)
    assert (world.rank, world.local_rank, world.size) == (9, 1, 16)


def test_slurm_tasks_share_port_and_steps_differ() -> None:
    """All tasks of a Slurm step derive one port and two steps of a job derive two."""
    first = find_group(TASK)
    assert find_group(TASK | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}).port == first.port
    assert find_group(TASK | {"SLURM_STEP_ID": "1"}).port != first.port
    assert 1024 < first.port < 32768


def test_slurm_task_with_own_gpu_uses_device_0() -> None:
    """A Slurm task that sees only its own GPU finds it at zero."""
    assert find_group(TASK | {"CUDA_VISIBLE_DEVICES": "5"}).local_rank == 0
    assert find_group(TASK | {"CUDA_VISIBLE_DEVICES": "4,5"}).local_rank == 1


def test_user_master_address_overrides_slurm() -> None:
    """Master address and port of the user outrank those of Slurm."""
    group = find_group(TASK | {"MASTER_ADDR": "ib-gpu03", "MASTER_PORT": "1234"})
    assert (group.address, group.port) == ("ib-gpu03", 1234)


def test_sbatch_without_srun_trains_alone_with_note() -> None:
    assert find_group(BATCH_SCRIPT) == Group()
    note = alone_in_slurm(BATCH_SCRIPT, 1)
    assert note is not None
    assert "16 tasks on 2 machines" in note
    assert "srun swift" in note


def test_one_machine_that_is_filled_by_nproc_needs_no_srun() -> None:
    one_machine = BATCH_SCRIPT | {"SLURM_JOB_NUM_NODES": "1"}
    assert alone_in_slurm(one_machine, 1) is not None
    assert alone_in_slurm(one_machine, 8) is None
    assert alone_in_slurm(TASK, 1) is None
    assert alone_in_slurm({}, 1) is None


def test_single_slurm_task_per_host_starts_processes() -> None:
    group = find_group(TASK | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, nproc=8)
    assert (group.size, group.rank, group.processes, group.address) == (2, 1, 8, "gpu03")


def test_pod_joins_as_one_process_or_starts_several() -> None:
    assert find_group(POD) == Group(size=2, rank=1, address="job-master-0", port=23456)
    assert find_group(POD, nproc=4).processes == 4


def test_operator_pod_starts_requested_processes() -> None:
    """A pod of the operator starts as many processes as the job says."""
    # With nprocPerNode 4 the operator sets WORLD_SIZE to all processes but RANK to the pod's own.
    operator = POD | {"WORLD_SIZE": "8", "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4"}
    assert find_group(operator) == Group(size=2, rank=1, address="job-master-0", port=23456, processes=4)
    assert find_group(operator, nproc=2).processes == 2


def test_trainer_pod_has_only_torchrun_variables() -> None:
    """A pod of the trainer has no other variables than those for torchrun."""
    pod = {
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "job-node-0-0.job",
        "PET_MASTER_PORT": "29400",
    }
    assert find_group(pod) == Group(size=3, rank=2, address="job-node-0-0.job", port=29400, processes=2)


def test_an_elastic_pod_is_sent_to_torchrun() -> None:
    pod = {"PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "job-worker-0:23456", "PET_RDZV_BACKEND": "c10d"}
    with pytest.raises(ConfigError, match="torchrun -m swift"):
        find_group(pod)


def test_launched_process_starts_no_children() -> None:
    member = POD | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert find_group(member).processes == 1
    assert find_group(member, nproc=2).processes == 1
    with pytest.raises(ConfigError, match="launcher already started 2"):
        find_group(member, nproc=4)


def test_stale_world_size_does_not_wait_for_peers() -> None:
    """A world size left over in the shell does not make a process wait for others."""
    assert current_world({"WORLD_SIZE": "8"}).size == 1
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        current_world({"WORLD_SIZE": "8", "RANK": "0"})


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(ConfigError, match="MASTER_PORT must be a whole number, but is 'tcp://1'"):
        find_group(POD | {"MASTER_PORT": "tcp://1"})


@pytest.fixture
def occupied() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_in_use_is_named_by_the_process_that_would_listen(occupied: int) -> None:
    variables = POD | {"MASTER_PORT": str(occupied), "RANK": "0"}
    with pytest.raises(ConfigError, match=f"Port {occupied}.*in use") as refused:
        check_port(variables)
    assert "MASTER_PORT" in str(refused.value.hint)
    check_port(variables | {"RANK": "1"})
    check_port(variables | {"TORCHELASTIC_USE_AGENT_STORE": "True"})


def test_a_free_port_is_left_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    for _ in range(2):
        check_port(POD | {"MASTER_PORT": port, "RANK": "0"})


def test_both_forms_of_the_cluster_examples_are_scripts_and_jobs() -> None:
    for script in (EXAMPLES / "slurm").glob("*.sbatch"):
        subprocess.run(["bash", "-n", str(script)], check=True)
        if script.name not in ("grpo.sbatch", "tokenise.sbatch"):  # tests/packaging/test_examples.py runs them
            assert "\nsrun swift sft examples/sft.yaml" in script.read_text()
    for path in (EXAMPLES / "kubernetes").glob("pytorchjob*.yaml"):
        replicas = yaml.safe_load(path.read_text())["spec"]["pytorchReplicaSpecs"]
        assert replicas["Master"]["template"] == replicas["Worker"]["template"]
        (container,) = replicas["Master"]["template"]["spec"]["containers"]
        group = find_group(POD, nproc=int(container["command"][-1]) if "--nproc" in container["command"] else None)
        assert group.processes == container["resources"]["limits"]["nvidia.com/gpu"]


TWO_MACHINES = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501"}


def test_ms_swift_variables_keep_their_meaning() -> None:
    """The variables in front of ms-swift's commands mean what they mean there."""
    assert find_group({"NPROC_PER_NODE": "4"}) == Group(processes=4)
    assert find_group({"NPROC_PER_NODE": "4", "MASTER_PORT": "29501", "NNODES": "1"}) == Group(processes=4)
    second = Group(size=2, rank=1, address="10.0.0.1", port=29501, processes=8)
    assert find_group({"NPROC_PER_NODE": "8", **TWO_MACHINES}) == second
    assert find_group(TWO_MACHINES) == Group(size=2, rank=1, address="10.0.0.1", port=29501)
    assert find_group(TASK | {"NPROC_PER_NODE": "8", **TWO_MACHINES}) == second
    assert find_group(POD | {"NPROC_PER_NODE": "8"}).processes == 8


def test_nproc_flag_overrides_environment() -> None:
    """A flag outranks the number of processes in the environment."""
    assert find_group({"NPROC_PER_NODE": "4"}, 2) == Group(processes=2)
    assert find_group({"NPROC_PER_NODE": ""}) == Group()


def test_launched_process_starts_no_others() -> None:
    assert find_group({"RANK": "0", "LOCAL_RANK": "0", "NPROC_PER_NODE": "4", **TWO_MACHINES}) == Group()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"NODE_RANK": ""}, "NODE_RANK is not set"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"NODE_RANK": "2"}, "numbered from 0 to 1"),
        ({"NNODES": "1:2"}, "NNODES must be a whole number"),
        ({"NNODES": "0"}, "at least one machine"),
        ({"NPROC_PER_NODE": "many"}, "NPROC_PER_NODE must be a whole number"),
        ({"NPROC_PER_NODE": "0"}, "from 1 to"),
    ],
)
def test_a_wrong_variable_in_front_of_a_command_is_named(wrong: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        find_group(TWO_MACHINES | wrong)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        (POD | {"RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2"),
        (POD | {"WORLD_SIZE": "0"}, "WORLD_SIZE must be a whole number from 1"),
        (POD | {"MASTER_PORT": "65536"}, "MASTER_PORT must be a whole number from 1 to 65535, but is '65536'"),
        (POD | {"RANK": "9" * 5000}, "RANK must be a whole number"),
        (POD | {"RANK": "\N{ARABIC-INDIC DIGIT ONE}"}, "RANK must be a whole number"),
        (POD | {"LOCAL_RANK": "0", "RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2"),
        (POD | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE must be a whole number from 1"),
        ({"RANK": "1", "LOCAL_RANK": "0"}, "RANK is 1, but WORLD_SIZE is 1"),
        ({"LOCAL_WORLD_SIZE": "two"}, "LOCAL_WORLD_SIZE must be a whole number"),
        ({"OMP_NUM_THREADS": "1.5"}, "OMP_NUM_THREADS must be a whole number"),
        (TASK | {"SLURM_PROCID": "16"}, "RANK is 16, but WORLD_SIZE is 16"),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2"),
    ],
)
def test_invalid_process_variables_are_refused(variables: dict[str, str], named: str) -> None:
    """Variables that contradict each other or tell no number are refused."""
    with pytest.raises(ConfigError, match=re.escape(named)) as refused:
        find_group(variables)
    assert refused.value.hint
    assert len(refused.value.message) < 400


def test_threads_for_nested_regions_are_not_those_of_a_process() -> None:
    assert threads_set({"OMP_NUM_THREADS": "4,2"}) == 4
    assert threads_set({"OMP_NUM_THREADS": ""}) is None


def test_rank_error_is_reported_without_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error about the number of a process is reported without that number."""
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigError, match="RANK must be"), reported_errors():
        current_world()
