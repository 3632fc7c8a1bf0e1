"""The page of a round: everything that is known of a completion is on it, and nothing that a model wrote is markup."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swift_rl.audit import page_of, token_values
from swift_rl.rounds.data import Prompt, RolloutCompletion, Round

HOSTILE = '</script><img src=x onerror="alert(1)"><!--<script>'


def a_round() -> Round:
    prompts = [
        Prompt(
            17, 0, np.array([1, 2]), [{"role": "user", "content": "Read 438 aloud."}], {"solution": "four three eight"}
        ),
        Prompt(4, 1, np.array([1, 3]), [{"role": "user", "content": HOSTILE}], {"grade": [1, 2]}),
    ]
    old = np.array([-1.0, -2.0, -0.5], np.float32)
    first = RolloutCompletion(
        0, 0, np.array([65, 66, 67]), old + np.float32(0.1), "stop", "four three eight", {"right": 1.0, "form": None},
        {"form": HOSTILE}, 1.0, np.full(3, 0.7), old, old - 0.3, np.ones(3), np.array([0.1, 0.2, 0.3]),
    )  # fmt: skip
    second = RolloutCompletion(
        1, 1, np.array([70]), np.array([-3.0]), "length", HOSTILE, {"right": None}, {"right": "no number"},
        float("nan"), np.zeros(1), why_not="no reward could be computed",
    )  # fmt: skip
    return Round(11, 22, prompts, [first, second], {"reward": 0.5, "is_weight": float("inf")}, {1: "all the same"})


def a_page() -> str:
    return page_of(a_round(), lambda ids: list(map(chr, ids)), {0: [23]})


def test_audit_page_shows_prompt_completions_and_rewards() -> None:
    """The page has prompt completions rewards tokens and what became of them."""
    page = json.loads(data_of(a_page()))
    kept, dropped = page["groups"]
    assert (kept["number"], kept["columns"], kept["dropped"]) == (17, {"solution": "four three eight"}, "")
    assert kept["messages"] == [{"role": "user", "content": "Read 438 aloud."}]
    assert dropped["dropped"] == "all the same"
    (completion,), (cut_off,) = kept["completions"], dropped["completions"]
    assert completion["rewards"] == {"right": {"value": 1.0, "remark": ""}, "form": {"value": None, "remark": HOSTILE}}
    assert (completion["reward"], completion["advantage"], completion["steps"]) == (1.0, 0.7, [23])
    assert completion["pieces"] == ["A", "B", "C"]
    assert completion["values"]["log-ratio to the engine"] == pytest.approx([-0.1] * 3, rel=1e-3)
    assert completion["values"]["ratio to the engine"] == pytest.approx([np.exp(-0.1)] * 3, rel=1e-3)
    assert completion["values"]["log-ratio to the reference"] == pytest.approx([0.3] * 3, rel=1e-3)
    assert completion["values"]["entropy"] == [0.1, 0.2, 0.3]
    assert (cut_off["reward"], cut_off["ended"]) == (None, "length")
    assert cut_off["why_not"] == "no reward could be computed"
    assert cut_off["pieces"] == ["F"]
    assert page["facts"] == {"reward": 0.5, "is_weight": "inf"}


def test_what_was_not_measured_is_not_offered() -> None:
    assert set(token_values(a_round().completions[1])) == {"log-probability", "advantage"}


def data_of(page: str) -> str:
    """The data of a page, as text."""
    found = re.search(r'id="round-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def test_model_output_is_escaped_and_nothing_is_loaded() -> None:
    """Nothing that was written by a model is markup and nothing is loaded."""
    page = a_page()
    assert HOSTILE not in page
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "innerHTML" not in page
    assert not re.findall(r'(?:src|href)="', page)
    assert json.loads(data_of(page))["groups"][1]["completions"][0]["text"] == HOSTILE


BROWSER = """
const made = [];
class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], style: {}, handlers: {}, text: "" });
    made.push(this);
  }
  set textContent(value) { this.text = String(value); }
  get textContent() { return this.text + this.children.map((each) => each.textContent).join(""); }
  append(child) {
    this.children.push(child);
    if (this.tag === "select" && this.value === undefined) this.value = child.textContent;
  }
  addEventListener(name, handler) { this.handlers[name] = handler; }
}
const byId = { "round-data": Object.assign(new Element("script"), { text: require("fs").readFileSync(0, "utf8") }) };
for (const [id, tag] of [["colour", "select"], ["facts", "dl"], ["groups", "div"], ["dropped", "input"]])
  byId[id] = new Element(tag);
global.document = { getElementById: (id) => byId[id], createElement: (tag) => new Element(tag) };
require(process.argv[1]);
const open = (each) => { each.open = true; if (each.handlers.toggle) each.handlers.toggle(); };
byId.groups.children.forEach(open);
made.filter((each) => each.tag === "details").forEach((each) => { if (!each.open) open(each); });
byId.colour.value = "entropy";
byId.colour.handlers.change();
byId.dropped.checked = true;
byId.dropped.handlers.change();
const spans = made.filter((each) => each.tag === "span" && each.title);
console.log(JSON.stringify({
  text: byId.groups.textContent, options: byId.colour.children.map((each) => each.textContent),
  colours: spans.map((each) => each.style.background), titles: spans.map((each) => each.title),
  hidden: byId.groups.children.map((each) => Boolean(each.hidden)),
}));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="the script of the page is run by Node.js")
def test_script_shows_completions_with_colored_tokens(tmp_path: Path) -> None:
    assets = Path(__import__("swift_rl").__file__).parent / "assets"
    ran = subprocess.run(
        ["node", "-e", BROWSER, str(assets / "audit.js")],
        input=data_of(a_page()),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    seen: dict[str, Any] = json.loads(ran.stdout)
    for part in ("Prompt 17: Read 438 aloud.", "four three eight", "learned from in step 23", "left out: all the same",
                 "not learned from: no reward could be computed", "cut off", HOSTILE, "no value"):  # fmt: skip
        assert part in seen["text"]
    assert "entropy" in seen["options"]
    assert "log-ratio to the engine" in seen["options"]
    strengths = [float(each.split("/")[1].strip(" )")) for each in seen["colours"]]
    assert strengths[:3] == pytest.approx([0.65 / 3, 0.65 * 2 / 3, 0.65])
    assert "entropy: 0.3" in seen["titles"][2]
    assert seen["hidden"] == [True, False]
