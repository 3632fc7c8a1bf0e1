"""`report.html` as a browser gets it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from swift.contracts import DataFacts, RejectedSamples
from swift.observers.jsonl import JsonlObserver, read_lines
from swift_trackers.report import ReportObserver, read_report

VOID = {"meta", "input", "br", "hr", "img", "link"}


class Page(HTMLParser):
    """Checks nesting, and collects attributes, visible text and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.visible: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.visible.append(data)


def page_of(run) -> Page:
    return Page((run.folder / "report.html").read_text())


def test_the_page_is_well_formed_and_needs_nothing_from_outside(make_run, drive):
    run = make_run()
    drive(ReportObserver(), run, range(1, 13), evaluate_at={6, 12}, save_at={6, 12})
    page = page_of(run)
    assert not [each for each in page.attributes if each[1] in ("src", "href", "srcset", "action", "data", "poster")]
    assert not {"link", "iframe", "img", "object", "base"} & set(page.tags)
    text = (run.folder / "report.html").read_text()
    assert "@import" not in text
    assert "url(" not in text
    addresses = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the namespace of SVG, which nothing is fetched from"


def test_the_curves_are_the_logged_lines(make_run, drive):
    run = make_run()
    drive(JsonlObserver(), run, range(1, 13), evaluate_at={6, 12})
    drive(ReportObserver(), run, range(1, 13), evaluate_at={6, 12}, save_at={6})
    held = read_report(run.folder / "report.html")
    timed = ("elapsed_time", "remaining_time")
    expected = read_lines(run.folder / "logging.jsonl")
    assert len(held["lines"]) == len(expected) == 5
    for drawn, logged in zip(held["lines"], expected, strict=True):
        assert {k: v for k, v in drawn.items() if k not in timed and v is not None} == {
            k: v for k, v in logged.items() if k not in timed
        }
    assert held["checkpoints"] == [{"step": 6, "folder": "checkpoint-6"}]


def test_each_metric_has_one_chart_for_train_and_eval(make_run, drive):
    """Every metric gets a chart that training and evaluation share."""
    run = make_run()
    drive(ReportObserver(), run, range(1, 13), evaluate_at={12}, metrics={"rewards/margin": 0.5, "token_acc": 0.75})
    text = (run.folder / "report.html").read_text()
    titles = re.findall(r'"title": "([^"]+)"', text)
    assert titles == [
        "Loss",
        "Learning rate",
        "Gradient norm",
        "Tokens per second",
        "Memory (GiB)",
        "Token accuracy",
        "Rewards/margin",
    ]
    loss_chart = re.search(r'"metric": "loss", "series": \[(.*?)\]', text)[1]
    assert re.findall(r'"name": "(\w+)"', loss_chart) == ["loss", "eval_loss"]


DOM = """
const nodes = {};
class Node {
  constructor(name) {
    Object.assign(this, { name, attributes: {}, children: [], style: {}, classList: { add() {} }, text: "" });
  }
  setAttribute(key, value) { this.attributes[key] = value; }
  append(child) { this.children.push(child); }
  replaceChildren() { this.children = []; }
  addEventListener() {}
  getBoundingClientRect() { return { width: 600, left: 0 }; }
  set textContent(text) { this.text = text; }
  get textContent() { return this.text; }
}
globalThis.document = {
  createElement: (name) => new Node(name),
  createElementNS: (_, name) => new Node(name),
  getElementById: (id) => (nodes[id] ??= new Node(id)),
};
globalThis.window = { innerWidth: 600, addEventListener() {} };
nodes["run-data"] = new Node("script");
nodes["run-data"].text = process.argv[2];
require("vm").runInThisContext(process.argv[3]);
const inside = (node) => (node.children || []).flatMap((child) => [child, ...inside(child)]);
const axis = (svg) => svg.children.filter((each) => each.attributes["text-anchor"] === "end");
console.log(JSON.stringify(Object.fromEntries(nodes.charts.children.map((figure) => {
  const all = inside(figure);
  const svg = all.find((each) => each.name === "svg");
  const ticks = axis(svg).filter((each) => each.attributes.x < 200).map((each) => each.text);
  return [all.find((each) => each.name === "h3").text, ticks];
}))));
"""
"""As much of a browser as the page's script needs; prints the labels of each chart's upright axis, from below."""


def ticks_of(run) -> dict[str, list[str]]:
    text = (run.folder / "report.html").read_text()
    data = re.search(r'id="run-data">(.*?)</script>', text, re.DOTALL)[1]
    script = text.rsplit("<script>", 1)[1].split("</script>")[0]
    done = subprocess.run(["node", "-", data, script], input=DOM, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_zero_metrics_have_charts_but_cpu_gpu_memory_has_none(make_run, make_record):
    """Metrics that are zero throughout have a chart but memory of no GPU has none."""
    run = make_run(steps=1)
    observer = ReportObserver()
    observer.swift_run_start(run)
    for step in (1, 2):
        record = make_record(step, metrics={"reward_accuracy": 0.0})
        observer.swift_step_end(run, replace(record, memory_gib=0.0))
    observer.swift_checkpoint_saved(run, 2, run.folder / "checkpoint-2")
    titles = re.findall(r'"title": "([^"]+)"', (run.folder / "report.html").read_text())
    assert "Reward accuracy" in titles
    assert "Memory (GiB)" not in titles


def test_the_heading_names_the_objective_the_model_and_the_run(make_run, drive):
    run = make_run(objective={"name": "dpo"})
    drive(ReportObserver(), run, range(1, 3))
    text = (run.folder / "report.html").read_text()
    assert "<title>dpo of Qwen3-0.6B · v0-20260101-000000</title>" in text
    assert {"dpo of Qwen3-0.6B", "v0-20260101-000000"} <= set(page_of(run).visible)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_axis_labels_differ_and_lr_axis_reaches_peak(make_run, make_record):
    """Labels of an axis differ and the axis of learning rates reaches the peak."""
    run = make_run(steps=2, total_steps=20, optim={"lr": 3.3e-5, "warmup_steps": 4})
    observer = ReportObserver()
    observer.swift_run_start(run)
    for step in range(1, 21):
        metrics = {"reward_accuracy": 0.0, "reward_margin": -1e-7 * step, "logps": 123456.0 + step / 4}
        loss, rate = 0.6931 - 0.00001 * step, run.schedule(step - 1)
        observer.swift_step_end(run, make_record(step, 20, loss=loss, learning_rate=rate, metrics=metrics))
    observer.swift_checkpoint_saved(run, 20, run.folder / "checkpoint-20")
    ticks = ticks_of(run)
    assert {"Loss", "Learning rate", "Reward accuracy", "Reward margin", "Logps"} <= set(ticks)
    for title, labels in ticks.items():
        assert len(set(labels)) == len(labels) >= 3, (title, labels)
    assert all(re.fullmatch(r"0\.69\d+", each) for each in ticks["Loss"])
    logged = [line["learning_rate"] for line in read_report(run.folder / "report.html")["lines"]]
    assert max(logged) < 3.3e-5, "the peak is at a step that is not logged"
    assert float(ticks["Learning rate"][-1]) >= 3.3e-5
    assert ticks["Learning rate"][0] == "0"


HOSTILE = "</script><script>alert(1)</script><b>&\"'"


def test_what_users_bring_is_shown_and_never_run(make_run, drive, make_summary):
    run = make_run(model={"path": HOSTILE}, data={"system": HOSTILE})
    run.facts["kernels"] = HOSTILE
    run.facts.data = DataFacts(1, 1, {HOSTILE: RejectedSamples(1, HOSTILE)})
    failed = make_summary("failed", 3, message=HOSTILE)
    drive(ReportObserver(), run, range(1, 4), summary=failed, save_at={2}, metrics={HOSTILE: 1.0})
    page = page_of(run)
    assert page.tags.count("script") == 2
    assert "b" not in page.tags
    assert page.visible.count(HOSTILE) >= 4
    assert HOSTILE in read_report(run.folder / "report.html")["lines"][0]


def test_a_resumed_run_goes_on_with_the_curves_of_its_folder(make_run, drive):
    run = make_run(steps=1)
    drive(ReportObserver(), run, range(1, 9), save_at={4, 8})
    drive(ReportObserver(), run, range(5, 13), save_at={8, 12}, loss=7.0)
    held = read_report(run.folder / "report.html")
    assert [line["step"] for line in held["lines"]] == list(range(1, 13))
    assert [line["loss"] == 7.0 for line in held["lines"]] == [False] * 4 + [True] * 8
    assert [saved["step"] for saved in held["checkpoints"]] == [4, 8, 12]


def test_the_report_is_there_while_the_run_goes_on(make_run, make_record):
    run = make_run()
    observer = ReportObserver()
    observer.swift_run_start(run)
    assert "running" in page_of(run).visible
    observer.swift_step_end(run, make_record(1, evaluation={"loss": 0.5}))
    assert read_report(run.folder / "report.html")["lines"][0]["eval_loss"] == 0.5
    assert [path.name for path in run.folder.iterdir()] == ["report.html"]


@pytest.mark.parametrize("status", ["completed", "stopped", "failed"])
def test_report_shows_how_run_ended(make_run, drive, make_summary, status):
    run = make_run()
    drive(ReportObserver(), run, range(1, 8), summary=make_summary(status, 7, run.folder / "checkpoint-5"))
    page = page_of(run)
    assert status in page.visible
    command = "swift chat" if status == "completed" else "--resume_from_checkpoint"
    assert any(command in text for text in page.visible)


def test_unwritable_report_warns_once_and_training_continues(make_run, drive, said):
    """A report that cannot be written warns once, and training continues."""
    run = make_run()
    observer = ReportObserver()
    observer.swift_run_start(run)
    (run.folder / "report.html").unlink()
    (run.folder / "report.html").mkdir()
    observer.swift_checkpoint_saved(run, 1, run.folder / "checkpoint-1")
    observer.swift_checkpoint_saved(run, 2, run.folder / "checkpoint-2")
    assert len([text for text in said if "Cannot write" in text and "report.html" in text]) == 1


def test_time_breakdown_is_one_chart(make_run, measured):
    """The parts of a step's time are one chart and rows of processes are left to the log."""
    observer, run = ReportObserver(), make_run(steps=1)
    observer.swift_run_start(run)
    observer.swift_step_end(run, measured(1))
    observer.swift_checkpoint_saved(run, 1, run.folder / "checkpoint-1")
    page = (run.folder / "report.html").read_text()
    data = json.loads(re.search(r'id="run-data">(.*?)</script>', page, re.DOTALL)[1])
    (chart,) = (each for each in data["charts"] if each["metric"] == "time_breakdown")
    assert sum(data["columns"][series["name"]][0] for series in chart["series"]) == pytest.approx(1)
    assert not [each for each in data["charts"] if each["metric"].endswith("_fraction")]
    assert "ranks" not in data["columns"]
