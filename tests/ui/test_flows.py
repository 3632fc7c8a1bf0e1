"""The dashboard in a real browser: one server, one browser, one model of a few thousand weights.

Later tests use the runs of earlier ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from browsing import PATIENCE, Dashboard, fill, launch, opened_browser, reaches, serious_findings, show, step
from commands import typed
from run_folders import add_lines, line_of, write_run

from swift_demo.task import completion, question

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.full, pytest.mark.browser]

LONG = {"train.max_steps": "100000", "logging.steps": "1", "optim.lr": "1e-3"}
"""A run that is still going on when it is stopped."""


def settings(name: str, **more: str) -> dict[str, str]:
    small = {"model.path": "tiny", "data.train": "train.jsonl", "tuner.kind": "full", "backend.cpu_threads": "1"}
    return {**small, "logging.run_name": name, **more}


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    from swift_demo.model import write_model

    folder = tmp_path_factory.mktemp("dashboard")
    write_model(folder / "tiny", hidden=32, layers=1)
    rows = [
        [{"role": "user", "content": question(n)}, {"role": "assistant", "content": completion(n)}]
        for n in range(100, 140)
    ]
    lines = [json.dumps({"messages": messages}) for messages in rows]
    lines += [json.dumps({"messages": rows[0][:1]})] * 2  # no response: nothing to train on
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "held-out.jsonl").write_text("\n".join(lines[:4]) + "\n")
    (folder / "output").mkdir()
    with opened_browser() as browser:
        dashboard = Dashboard(folder, browser)
        dashboard.start()
        try:
            yield dashboard
        finally:
            for job in (folder / "output" / ".swift-ui" / "jobs").glob("*/started.json"):
                with suppress(ProcessLookupError):
                    os.killpg(json.loads(job.read_text())["process"], signal.SIGKILL)
            dashboard.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def page(dashboard: Dashboard) -> Page:
    return dashboard.page()


def test_form_offers_models_and_data_sets(page: Page) -> None:
    """An untouched form starts nothing; a model and a data set are chosen from what this machine has."""
    show(page, "/new/sft")
    page.locator("#refusal.calm", has_text="needs --model").wait_for()
    assert page.locator("#launch").is_disabled()
    assert page.inner_text("#changed-count") == ""
    for key, value in {"model.path": "tiny", "data.train": "train.jsonl"}.items():
        page.locator(f"[data-field='{key}'] summary").click()
        page.locator(f".choice[data-value='{value}']").click()
    page.locator("#launch:enabled").wait_for()
    assert "swift sft --model tiny --dataset train.jsonl --run_name" in page.inner_text("#command")
    assert page.inner_text("#changed-count") == "2 changed"
    page.get_by_role("button", name="Full").click()
    page.locator("#command", has_text="--train_type full").wait_for()
    page.get_by_role("button", name="Clear").click()
    page.locator("#refusal.calm").wait_for()


def test_bad_form_shows_error_of_command_line(dashboard: Dashboard, page: Page) -> None:
    """A bad form is refused with the error message of the command line."""
    show(page, "/new/sft")
    fill(page, settings("bad", **{"train.micro_batch": "many"}))
    page.locator("#refusal", has_text="many").wait_for()
    argv = page.inner_text("#command").split()[1:]
    printed = typed(argv, dashboard.folder)
    assert printed.code == 2
    assert printed.output == f"Error: {page.inner_text('#refusal').strip()}\n".replace("\n\n", "\n")
    assert page.locator("#launch").is_disabled()


def test_form_shows_memory_fit_while_typing(page: Page) -> None:
    fill(page, {"train.micro_batch": "2"})
    page.wait_for_selector("#plan.fits")
    assert re.match(r"Fits: [\d.]+ GiB ± \d+ % of [\d.]+ GiB", page.inner_text("#plan .plan-summary"))
    fill(page, {"train.micro_batch": "4000000", "data.max_length": "1000"})
    page.wait_for_selector("#plan.over")
    assert page.inner_text("#plan .plan-summary").startswith("Does not fit")


def test_preset_and_plugin_change_the_form(page: Page) -> None:
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("button", name="QLoRA").click()
    page.locator("#command", has_text="--tuner.quantize bnb-nf4").wait_for()
    assert len(page.inner_text("#command").split()) <= 6
    page.get_by_role("button", name="GRPO").click()
    page.locator("[data-key='objective.num_generations']").wait_for()
    page.locator("#command", has_text="swift rlhf --objective grpo").wait_for()


def test_started_run_curve_grows_without_reload(page: Page) -> None:
    launch(page, settings("first", **LONG))
    page.wait_for_selector(".status.running")
    reaches(page, 5)
    page.wait_for_selector(".chart svg .curve")
    reaches(page, step(page) + 3)


def test_reload_mid_run_shows_same_curve(page: Page) -> None:
    """A reload in the middle shows the same curve and what came since."""
    before = points(page)
    page.reload()
    page.wait_for_selector(".chart svg .curve")
    after = points(page)
    assert len(before) > 5
    assert after[: len(before)] == before
    reaches(page, len(after) + 3)


def points(page: Page) -> list[tuple[float, float]]:
    """The losses that the page's own server has for its curve."""
    key = page.evaluate("location.hash").split("/")[2]
    found = page.evaluate("key => fetch(`/api/runs/${key}/series`).then((response) => response.json())", key)
    steps, losses = found["series"]["loss"]
    return list(zip(steps, losses, strict=True))


def test_server_restart_keeps_runs(dashboard: Dashboard, page: Page) -> None:
    """A restart of the server in the middle touches no run and loses nothing."""
    before, reached = points(page), step(page)
    dashboard.end(signal.SIGKILL)
    dashboard.start()
    with page.expect_response(lambda response: response.url.endswith("/api/login")):
        page.goto(f"{dashboard.address}#token={dashboard.token}")  # in the open page
    page.wait_for_selector(".status.running")
    reaches(page, reached + 3)
    assert points(page)[: len(before)] == before


def test_a_run_is_stopped_with_a_checkpoint(dashboard: Dashboard, page: Page) -> None:
    page.click("#stop")
    page.wait_for_selector(".status.stopped")
    assert list((dashboard.folder / "output" / "tiny" / "first").glob("checkpoint-*/manifest.json"))


def test_a_stopped_run_goes_on_from_its_checkpoint(dashboard: Dashboard, page: Page) -> None:
    stopped = step(page)
    page.click("#resume")
    page.wait_for_selector(".status.running")
    reaches(page, stopped + 2)
    (log,) = (dashboard.folder / "output" / "tiny" / "first").glob("log.txt")
    assert f"at step {stopped} of 100000" in log.read_text()


def test_a_run_that_dies_is_shown_with_its_cause(dashboard: Dashboard, page: Page) -> None:
    lock = (dashboard.folder / "output" / "tiny" / "first" / ".lock").read_text()
    os.kill(int(re.findall(r"\d+", lock)[0]), signal.SIGKILL)
    page.wait_for_selector(".status.died")
    page.locator(".problem", has_text="signal 9 (SIGKILL)").wait_for()


def test_finished_runs_are_compared_by_differences(page: Page) -> None:
    """A short run comes to its end and two runs are compared by what differs."""
    launch(page, settings("second", **{"train.max_steps": "4", "logging.steps": "1", "optim.lr": "2e-3"}))
    page.wait_for_selector(".status.completed")
    show(page, "/runs")
    page.locator("tr[data-run]").nth(1).wait_for()
    for checkbox in page.locator("tr[data-run] input[type=checkbox]").all():
        checkbox.check()
    page.get_by_role("button", name="Compare").or_(page.get_by_role("link", name="Compare")).click()
    page.wait_for_selector(".view-compare .keys")
    keys = page.locator(".view-compare .keys tbody tr > :first-child").all_inner_texts()
    assert set(keys) == {"optim.lr", "train.max_steps"}


def test_samples_match_terminal_token_for_token(dashboard: Dashboard, page: Page) -> None:
    """Samples are shown as the terminal shows them token for token."""
    show(page, "/runs")
    page.get_by_role("link", name="tiny/second").click()
    page.get_by_role("link", name="Samples").click()
    page.wait_for_selector(".sample .text")
    drawn = page.evaluate(
        "() => [...document.querySelectorAll('.sample')].map((sample) => { const text = sample.querySelector('.text');"
        "const marked = [...text.childNodes].map((node) => node.nodeName === 'MARK' ? `⟦${node.textContent}⟧` :"
        " node.textContent).join(''); return [marked, sample.querySelector('.ids').textContent.trim()]; })"
    )
    shown = typed(
        ["config", "show", "sft", "--config", "output/tiny/second/config.yaml", "--sample", str(len(drawn))],
        dashboard.folder,
    )
    terminal = shown.output.replace("\n", "")
    assert len(drawn) > 1
    for marked, ids in drawn:
        assert marked.replace("\n", "") in terminal
        assert re.sub(r"\s+", "", ids) in re.sub(r"[\s]+", "", terminal)


def test_samples_that_were_left_out_are_counted_by_reason(page: Page) -> None:
    section = page.get_by_label("Skipped samples")
    assert "2 samples were skipped" in section.inner_text()
    assert "train.jsonl:41" in section.inner_text()


def test_checkpoint_is_exported_from_page(dashboard: Dashboard, page: Page) -> None:
    page.locator(".actions a", has_text="Export").click()
    page.locator("#launch:enabled").wait_for()
    assert page.inner_text("#command").startswith("swift export ")
    page.click("#launch")
    page.wait_for_selector(".status.completed")
    (exported,) = (dashboard.folder / "output" / "tiny" / "second").glob("*/verification.json")
    assert (exported.parent / "model.safetensors").is_file()


def test_files_list_checkpoints_with_losses_and_plan(page: Page) -> None:
    show(page, "/runs")
    page.get_by_role("link", name="tiny/second").click()
    page.get_by_role("link", name="Files").click()
    row = page.get_by_label("Checkpoints").locator("tbody tr")
    row.wait_for()
    cells = row.locator("td").all_inner_texts()
    assert cells[:2] == ["checkpoint-4", "4"]
    assert float(cells[2]) == pytest.approx(points(page)[-1][1], rel=1e-3)
    assert page.get_by_role("region", name="Plan", exact=True).locator("tbody tr").count() == 2
    row.get_by_role("link", name="Export").click()
    page.locator("#command", has_text="second/checkpoint-4").wait_for()


def test_empty_chat_offers_checkpoints(dashboard: Dashboard, page: Page) -> None:
    show(page, "/chat")
    page.locator(f".choice[data-value='{dashboard.folder}/output/tiny/second/checkpoint-4']").click()
    page.locator(".chat-column .status.completed").wait_for()
    page.click("#chat-more")
    page.locator(".choice[data-value=tiny]").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name=re.compile("^Close")).click()
    page.locator(".choice[data-value=tiny]").wait_for()


def test_checkpoint_responds_next_to_base_model(dashboard: Dashboard, page: Page) -> None:
    """A checkpoint responds next to the model that it was trained from."""
    checkpoint = dashboard.folder / "output" / "tiny" / "second" / "checkpoint-4"
    show(page, f"/chat?model={checkpoint}&model=tiny")
    page.locator(".chat-column .status.completed").nth(1).wait_for()
    page.fill("#chat-tokens", "8")
    page.fill("#chat-question", question(123))
    page.press("#chat-question", "Enter")
    page.locator(".message-model[data-done]").nth(1).wait_for()
    replies = page.locator(".message-model > span").all_inner_texts()
    for model, reply in zip((str(checkpoint), "tiny"), replies, strict=True):
        generated = typed(["infer", model, "--prompt", question(123), "--max_new_tokens", "8"], dashboard.folder)
        assert generated.output.strip().endswith(reply.strip())
    page.get_by_role("button", name=re.compile("^Close")).first.click()


@pytest.mark.vllm
def test_checkpoint_is_served_from_page_and_stopped(dashboard: Dashboard, page: Page) -> None:
    """A checkpoint is served from the page, queried by a client and stopped."""
    import openai

    show(page, "/runs")
    page.get_by_role("link", name="tiny/second").click()
    page.locator(".actions a", has_text="Serve").click()
    fill(page, {"name": "mine", "port": "0", "max_length": "64"})
    page.locator("#launch:enabled").wait_for()
    page.click("#launch")
    page.locator("#job-log", has_text="Ctrl-C stops it").wait_for(timeout=4 * PATIENCE)
    log = page.inner_text("#job-log")
    (address,) = re.findall(r"Serving .* at (\S+)", log)
    client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": question(123)}]
    response = client.chat.completions.create(model="mine", messages=messages, max_tokens=4, temperature=0)  # type: ignore[arg-type]
    checkpoint = dashboard.folder / "output" / "tiny" / "second" / "checkpoint-4"
    generated = typed(["infer", str(checkpoint), "--prompt", question(123), "--max_new_tokens", "4"], dashboard.folder)
    assert generated.output.strip().endswith(str(response.choices[0].message.content).strip())
    page.get_by_role("button", name="Stop", exact=True).click()
    page.wait_for_selector(".status.stopped")


def test_vision_model_reads_image(dashboard: Dashboard, page: Page) -> None:
    from PIL import Image

    from swift_demo.vision_model import write_vision_model

    write_vision_model(dashboard.folder / "sees", hidden=32, seed=3, spread=0.4)
    Image.linear_gradient("L").resize((56, 56)).convert("RGB").save(dashboard.folder / "seen.png")
    show(page, "/chat?model=sees")
    page.locator(".chat-column[data-model=sees] .status.completed").wait_for()
    page.fill("#chat-tokens", "8")
    page.set_input_files("#chat-image", dashboard.folder / "seen.png")
    page.get_by_text("attached to the next question").wait_for()
    page.fill("#chat-question", "What is it?")
    page.press("#chat-question", "Enter")
    column = page.locator(".chat-column[data-model=sees]")
    column.locator(".message-model[data-done]").wait_for()
    column.locator(".message-user img").wait_for()
    reply = str(column.locator(".message-model > span").text_content()).strip()
    argv = ["infer", "sees", "--prompt", "What is it?", "--max_new_tokens", "8"]
    assert typed([*argv, "--image", "seen.png"], dashboard.folder).output.strip().endswith(reply)
    assert not typed(argv, dashboard.folder).output.strip().endswith(reply)
    column.get_by_role("button", name=re.compile("^Close")).click()


def test_long_run_is_drawn_progressively(dashboard: Dashboard, page: Page) -> None:
    lines = [line_of(each, 40_000, note="x" * 300) for each in range(1, 20_001)]
    folder = write_run(dashboard.folder / "output" / "far" / "long", lines)
    glance, all_ = re.compile(r"/series\?glance"), re.compile("/series$")
    with page.expect_response(glance) as first, page.expect_response(all_) as then:
        show(page, "/runs")
        page.get_by_role("link", name="far/long").click()
        page.wait_for_selector(".chart svg .curve")
    some, every = (response.value.json() for response in (first, then))
    assert (some["whole"], every["whole"]) == (False, True)
    for found in (some, every):
        assert [found["series"]["loss"][0][index] for index in (0, -1)] == [1, 20_000]
    add_lines(folder, [line_of(20_001, 40_000)])
    reaches(page, 20_001)


def test_wrong_tokens_hosts_and_origins_get_nothing(dashboard: Dashboard, page: Page) -> None:
    def status(path: str, **headers: str) -> int:
        request = urllib.request.Request(f"{dashboard.address}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    cookies = "; ".join(f"{each['name']}={each['value']}" for each in page.context.cookies())
    assert status("api/jobs", Cookie=cookies) == 200
    assert status("api/jobs") == 401
    assert status("api/jobs", Cookie=cookies[:-1] + ("1" if cookies.endswith("0") else "0")) == 401
    assert status("api/jobs", Cookie=cookies, Host="evil.example") == 403
    assert status("api/jobs", Cookie=cookies, Origin="http://evil.example") == 403
    stranger = dashboard.browser.new_context().new_page()
    stranger.goto(f"{dashboard.address}#token=of-yesterday")
    stranger.get_by_role("alert").wait_for()
    assert "from an earlier start" in stranger.inner_text("main")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_views_have_no_serious_accessibility_finding(dashboard: Dashboard, scheme: str) -> None:
    """Every view reads well in both themes and has no serious finding."""
    page = dashboard.page(color_scheme=scheme)
    trained = page.locator("tr[data-run]", has=page.get_by_role("link", name="tiny/second"))
    run = trained.get_attribute("data-run")
    waits = {
        "/runs": "tr[data-run]",
        f"/run/{run}": ".chart svg .curve",
        f"/run/{run}/samples": ".sample",
        f"/run/{run}/log": "pre",
        f"/run/{run}/config": ".keys, pre",
        "/new/sft": "#verdict > *",
        "/new/export": "#verdict > *",
        "/jobs": "tr[data-job]",
        f"/run/{run}/files": "table",
        "/chat": ".chat-column, .choice",
    }
    findings = []
    for hash_, wanted in waits.items():
        show(page, hash_)
        page.locator(f"main {wanted}").first.wait_for()
        findings += [f"{hash_}: {each}" for each in serious_findings(page)]
    assert not findings
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
    assert (brightness > 128) == (scheme == "light")


def test_a_run_is_started_by_the_keyboard_alone(dashboard: Dashboard) -> None:
    page = dashboard.page("/new/sft")
    page.wait_for_selector("#command")
    for key, value in settings("by-keys", **{"train.max_steps": "1"}).items():
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("/")
        page.wait_for_function("document.activeElement.id === 'search'")
        page.keyboard.press("Control+a")
        page.keyboard.type(key)
        control = page.locator(f"[data-key='{key}']")
        control.wait_for(state="visible")
        for _ in range(60):
            page.keyboard.press("Tab")
            if control.evaluate("each => each === document.activeElement"):
                break
        if control.evaluate("each => each.tagName") == "SELECT":
            page.keyboard.press(value[0])  # what follows would choose anew where the options are drawn meanwhile
        else:
            page.keyboard.press("Control+a")
            page.keyboard.type(value)
        page.wait_for_function(
            "([key, value]) => document.querySelector(`[data-key='${key}']`)?.value === value", arg=[key, value]
        )
        page.locator("#command", has_text=value).wait_for()  # a choice that brings options has drawn them by then
    page.locator("#command", has_text="by-keys").wait_for()
    page.locator("#launch:enabled").wait_for()
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".view-run .status, .view-jobs .status")


def test_browser_requests_no_other_host(dashboard: Dashboard) -> None:
    others = [url for url in dashboard.requested if not url.startswith((dashboard.address, "data:", "blob:"))]
    assert len(dashboard.requested) > 100
    assert not others
    assert not [each for each in dashboard.complaints if "Failed to load resource" not in each and "ERR_" not in each]
